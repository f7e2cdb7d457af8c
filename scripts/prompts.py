"""Prompts of many kinds, made from templates: what people ask an assistant, for training a drafter.

`python -m scripts.prompts FILE` writes them as .jsonl, the same every time. They are ours and free to use.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

COUNT = 20000

TOPICS = """climate change|photosynthesis|the French Revolution|black holes|machine learning|the stock market
|jazz music|the human heart|Roman architecture|renewable energy|chess openings|Shakespeare's tragedies
|bird migration|vaccines|the water cycle|electric cars|ancient Egypt|inflation|the immune system|coffee brewing
|plate tectonics|yoga|recycling|the solar system|blockchain|the Cold War|gardening|DNA replication|social media
|the Great Barrier Reef|time management|mental health|public transport|supply and demand|quantum mechanics
|the Renaissance|bread baking|dinosaurs|volcanoes|space exploration|the industrial revolution
|artificial intelligence|bees and pollination|the Olympic Games|poetry|remote work|nutrition|the printing press
|coral reefs|human rights|robotics|game theory|the Silk Road|photography|urban planning|sleep|philosophy of science
|rainforests|personal finance|Greek mythology|the nervous system|democracy|hurricanes|computer networks|world trade
|impressionist painting|electricity|evolution|the Amazon river|antibiotics|meditation|the periodic table|gravity
|cryptography|international law|film directing|sustainable fashion|the moon|public speaking|football tactics
|marathon training|data privacy|earthquakes|magnetism|the Vikings|opera|tea culture|insurance|self-driving cars
|nuclear power|deep sea fish|language learning|copyright|the brain|wine making|glaciers|online education
|job interviews|the United Nations|probability|linear algebra|operating systems|databases|compilers"""

PEOPLE = """a doctor|a pirate captain|a travel guide|a history teacher|Sherlock Holmes|a chef|a software engineer
|a poet|a detective|an astronaut|a medieval knight|a football coach|a scientist|a lawyer|a fairy tale narrator
|a robot|a grandmother|a news anchor|a philosopher|a gardener|Albert Einstein|a stand-up comedian|a psychologist
|a ghost"""

PLACES = """Japan|Italy|New York|the Alps|Iceland|Kenya|Paris|Bangkok|Peru|Morocco|Berlin|Sydney|a small village
|Norway|the Grand Canyon|Istanbul|India|the Caribbean|Canada|a desert island|London|Brazil|Greece|Vietnam|Scotland
|Mexico"""

CODE = """reverses a string|checks whether a number is prime|sorts a list of dictionaries by a key
|counts words in a file|finds the longest common subsequence of two strings|computes the Fibonacci numbers
|merges two sorted lists|parses a CSV file and prints the average of a column|implements a binary search tree
|solves the n queens problem|finds all anagrams in a list of words|downloads a web page and extracts its links
|implements a stack with two queues|converts Roman numerals to integers|validates an email address
|simulates a dice game|finds duplicates in a list|computes the greatest common divisor|flattens a nested list
|implements quicksort|detects a cycle in a linked list|generates a random password|removes stop words from a text
|multiplies two matrices|counts vowels in a sentence"""

QUESTIONS = """who wrote {work}|who discovered {thing}|when was {thing} invented|what is the capital of {country}
|how many people live in {country}|where is {thing} used|who was the first person to {deed}
|what is the meaning of {word}|which country is famous for {thing}|when did {country} join the United Nations
|who plays the main role in {work}|how long does it take to {deed}|what year did {work} come out
|where does the word {word} come from|why do people {deed}|what is the largest city in {country}
|who is the president of {country}|what causes {word}|how is {thing} made|who sang {work}
|when is the best time to {deed}|what is the difference between {thing} and {other}"""
WORK = """pride and prejudice|the old man and the sea|the lion king|war and peace|hey jude|the great gatsby
|star wars|the odyssey|moby dick|les miserables|breaking bad|the godfather|thriller|the starry night|don quixote
|jurassic park"""
THING = """penicillin|paper|the telephone|gunpowder|the steam engine|glass|radium|porcelain|the compass|rubber
|cement|soap|the microscope|chocolate|silk|steel|the piano|insulin|the zipper|concrete|aspirin|the bicycle|cheese
|the internet"""
DEED = """climb mount everest|walk on the moon|cross the atlantic|swim the english channel|learn a language
|win a nobel prize|plant tomatoes|boil an egg|run a marathon|fly around the world|visit the south pole
|get a passport|grow an oak tree"""
WORD = """serendipity|thunder|inflation|photosynthesis|irony|asthma|rainbows|hiccups|democracy|tides|algebra
|insomnia"""
COUNTRY = (
    """france|kenya|bolivia|sweden|indonesia|egypt|poland|chile|new zealand|turkey|south korea|nigeria|portugal|cuba"""
)

TASKS = """Explain {topic} to a {age}-year-old child.|Write an essay about {topic}.
|What are the main ideas behind {topic}?|Write a short poem about {topic}.
|Give me {n} interesting facts about {topic}.|Summarize the history of {topic}.
|What are the advantages and disadvantages of {topic}?|How has {topic} changed over the last {n} decades?
|Write a dialogue between two friends who talk about {topic}.|Compare {topic} with {topic2}.
|Create a quiz with {n} questions about {topic}.|Describe the relation between {topic} and {topic2}.
|Write a persuasive speech about the importance of {topic}.|What does the future of {topic} look like?
|List {n} books or films about {topic} and describe each in a sentence.|How can I learn more about {topic}?
|Explain the most common misunderstanding about {topic}.|Write a newspaper article about {topic}.
|Pretend to be {person}. Tell me what you think about {topic}.
|You are {person}. Give advice on {topic} to a beginner.|Write a letter from {person} to a friend in {place}.
|Act as {person} and answer my questions. What is {topic}?|Write a story about {person} who travels to {place}.
|Plan a {n}-day trip to {place}.|Describe a market in {place}.
|Write a diary entry of {person} after a long day in {place}.|What should I know before I move to {place}?
|Write a Python function that {code}.|Write a program in {language} that {code}. Explain how it works.
|How would you test a function that {code}?|Give me an algorithm that {code} and its running time.
|Write an email to my {role} about {matter}.|Help me with {matter}: what should I say to my {role}?
|Suggest a {n}-week plan to get better at {topic}.|What is {topic} and why does it matter for {topic2}?
|Edit this sentence for grammar and style: "{topic} are a thing that many peoples from {place} is talking of."
|Is it true that {topic} was first described in {place}? Explain your answer.
|Write a recipe that is typical of {place}.|Write a product description for a device that helps with {topic}.
|Write a haiku about {place}.|Design a lesson about {topic} for {age}-year-old students.
|Discuss the ethics of {topic}.|A student asks: how does {topic} work, step by step? Answer in {n} steps.
|Write the opening scene of a film set in {place}.|What would {person} say about {topic2}?
|Rewrite in simple words: {topic} has a considerable influence on {topic2}."""
LANGUAGE = "C++|Java|JavaScript|Python|Rust|Go"
ROLE = "boss|landlord|teacher|colleague|neighbour|customer|professor|sister"
MATTER = """a late payment|a broken heater|next week's meeting|a pay rise|an unfinished report|a lost parcel
|an apology|a letter of recommendation|a change of plans|a birthday party|a missed deadline|noise at night"""

WHO = """Die Regierung|Der Bürgermeister von Köln|Ein Sprecher der Polizei|Die Europäische Union|Der Trainer
|Meine Schwester|Die Universität|Der Vorstand des Unternehmens|Eine Gruppe von Forschern|Der Präsident
|Die Mannschaft|Ein alter Freund|Die Zeitung|Der Minister für Verkehr|Die Bank|Das Krankenhaus|Die Gewerkschaft
|Der Autor des Buches|Die Feuerwehr|Ein Gericht in München|Die Stadt Hamburg|Der Hersteller|Die Opposition
|Unser Nachbar|Die Behörde|Der Verein"""
WHEN = """am Montag|gestern Abend|im vergangenen Jahr|nach langen Verhandlungen|trotz der Kritik
|in der Nacht zum Sonntag|wegen des schlechten Wetters|zum ersten Mal seit zehn Jahren|während der Konferenz
|kurz vor der Wahl|im Sommer 2012|seit dem Ende des Krieges|vor einigen Wochen|nach Angaben der Behörden
|am frühen Morgen|bis zum Ende des Monats"""
DID = "hat"
WHAT = """neue Maßnahmen gegen die steigenden Preise angekündigt|den Bau einer Brücke über den Fluss beschlossen
|mehr als zwanzig Menschen in Sicherheit gebracht|das Spiel mit drei zu eins gewonnen
|die Zahl der Stellen verdoppelt|einen Bericht über die Lage der Schulen veröffentlicht
|das alte Rathaus für Besucher geöffnet|die Vorwürfe bestritten|einen Preis für seine Arbeit erhalten
|die Verhandlungen mit den Partnern abgebrochen|ein Haus am See gekauft|die Straße nach dem Unfall gesperrt
|über die Zukunft der Energie gesprochen|eine Studie zur Gesundheit vorgestellt
|den Vertrag um zwei Jahre verlängert|vor den Folgen des Klimawandels gewarnt
|die Kosten auf drei Millionen Euro geschätzt|die Öffentlichkeit um Hilfe gebeten
|das Konzert in letzter Minute abgesagt|die Grenze für Reisende geöffnet"""
WHY = """, weil die Lage sich verschlechtert hatte|, obwohl viele Bürger dagegen waren
|, um Arbeitsplätze zu sichern|, sagte ein Sprecher|, wie am Dienstag bekannt wurde
|, nachdem das Parlament zugestimmt hatte| und dafür viel Lob bekommen
|, ohne auf die Fragen der Journalisten zu antworten|, die seit Monaten erwartet wurden||||"""
NOUNS = """die Wirtschaft|der Flughafen|das Wetter|die Wissenschaft|der Arbeitsmarkt|die Bundeskanzlerin
|das Parlament|der Zug|die Krankenkasse|das Museum|der Bahnhof|die Gesellschaft|das Abkommen|der Nachbarstaat
|die Gesundheit|die Schülerin|der Richter|das Urteil|die Landwirtschaft|der Kunde|die Umfrage|das Schloss
|der Soldat|die Freiheit|der Verbraucher|die Werkstatt|das Gesetz|der Angriff|die Ausstellung|das Ergebnis
|der Haushalt|die Versicherung|der Fahrer|die Geschwindigkeit|das Fahrzeug|der Wald|die Küste|das Unternehmen
|der Verdächtige|die Staatsanwaltschaft|der Künstler|die Bühne|das Jahrhundert|der Schnee|die Hitze|das Dorf
|der Zuschauer|die Meisterschaft|das Tor|der Strom|die Rechnung|das Grundstück|der Einwohner|die Bevölkerung
|das Viertel|der Hund|die Straßenbahn|das Gericht|der Zeuge|die Aussage|das Verfahren|der Händler|die Ware
|das Angebot|der Umsatz|die Aktie|das Geschäft|der Patient|die Behandlung|das Medikament|der Arzt|die Ursache
|das Ereignis|der Unfall|die Verletzung|das Opfer|der Gast|die Küche|das Hotel|der Strand|die Reise|das Gepäck
|der Lehrer|die Prüfung|das Zeugnis|der Bildschirm|die Sicherheit|das Netz|der Rechner|die Botschaft|das Treffen
|der Außenminister|die Erklärung|das Ziel|der Frieden"""
HOW = """bereits|noch nicht|wahrscheinlich|offenbar|endlich|seit langem|immer wieder|deutlich|schließlich|ebenfalls
|angeblich|nach Ansicht der Experten|in vielen Ländern|ohne Erfolg|mit großer Mehrheit|zunächst|kaum|inzwischen"""
KINDS = """neuen|alten|großen|wichtigen|schwierigen|deutschen|europäischen|teuren|jungen|schweren|öffentlichen
|privaten|langen|kleinen|bekannten|amerikanischen|gefährlichen|politischen|sozialen|technischen|ehemaligen
|zahlreichen"""
DONE = """verändert|untersucht|gefunden|verloren|gebaut|verkauft|verboten|gefordert|unterstützt|erklärt|verletzt
|geöffnet|geschlossen|verschoben|verbessert|zerstört|geplant|geprüft|gestohlen|erreicht|vermieden|abgelehnt
|gefeiert|entdeckt|begonnen|beendet|gerettet|versprochen|bezahlt|gesenkt|erhöht|vergessen|beobachtet|bestätigt
|kritisiert|verhandelt"""
SINGLE = """Es gibt keinen Grund, {noun} und {noun2} zu verwechseln|Wie viel kostet {noun} in diesem Jahr?
|Man darf nicht vergessen, dass {noun} {how} {done} wurde|{noun} ist {how} wichtiger als {noun2}
|Wer {noun} kennt, weiß, warum {noun2} {how} {done} wird|In den {kind} Städten wird {noun} {how} {done}
|Für {noun} und {noun2} haben die {kind} Vertreter {how} gekämpft
|{noun} wurde {when} von den {kind} Behörden {done}|Ich glaube, dass {noun} {how} {done} werden muss
|Vor den {kind} Wahlen ist {noun} {how} ein Thema|„{noun} muss {how} {done} werden“, sagte er {when}
|Sie haben {when} {noun} und {noun2} {done}|Nach den {kind} Jahren hat {noun} die {kind2} Menschen {how} {done}"""
TRANSLATE = """Translate German to English: {german}|Translate the following German text into English:\\n{german}
|{german}\\nWhat does this mean in English?|Translate from German to English.\\n{german}|Please translate: {german}"""


def made(rng: np.random.Generator) -> str:
    """One prompt."""

    def one(words: str) -> str:
        choices = words.replace("\n", "").split("|")
        return choices[int(rng.integers(len(choices)))]

    kind = rng.random()
    if kind < 0.3:
        when = one(WHEN)
        german = f"{one(WHO)} {one(DID)} {when} {one(WHAT)}{one(WHY)}."
        if rng.random() < 0.7:
            names = {"noun": one(NOUNS), "noun2": one(NOUNS), "kind": one(KINDS), "kind2": one(KINDS)}
            german = one(SINGLE).format(**names, how=one(HOW), done=one(DONE), when=when)
            german = german[0].upper() + german[1:]
        return one(TRANSLATE).format(german=german).replace("\\n", "\n")
    if kind < 0.52:
        asked = one(QUESTIONS).format(
            work=one(WORK), thing=one(THING), other=one(THING), deed=one(DEED), word=one(WORD), country=one(COUNTRY)
        )
        return asked[0].upper() + asked[1:] + "?" if rng.random() < 0.6 else asked
    return one(TASKS).format(
        topic=one(TOPICS),
        topic2=one(TOPICS),
        person=one(PEOPLE),
        place=one(PLACES),
        code=one(CODE),
        language=one(LANGUAGE),
        role=one(ROLE),
        matter=one(MATTER),
        age=int(rng.integers(5, 18)),
        n=int(rng.integers(3, 11)),
    )


def main() -> None:
    rng = np.random.default_rng(0)
    lines = [json.dumps({"prompt": made(rng)}, ensure_ascii=False) for _ in range(COUNT)]
    Path(sys.argv[1]).write_text("\n".join(dict.fromkeys(lines)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
