"""Chat templates: what they render is what transformers renders, and they reach nothing else."""

from __future__ import annotations

import pytest
from jinja2.exceptions import SecurityError, TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from draftproof.models.chat_template import is_plain, render

CHAT = [
    {"role": "system", "content": "Be brief & <kind>."},
    {"role": "user", "content": "Why is the sky blue? é 🙂\n"},
    {"role": "assistant", "content": "Light scatters: "},
]
NAMES = {"bos_token": "<s>", "eos_token": "</s>"}
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEMPLATES = {
    "chatml": CHATML,
    "trimmed": CHATML.replace("message['content']", "message.content | trim"),
    "blocks": "{{ bos_token }}\n  {% for m in messages %}\n    {{ m.role }}: {{ m.content }}\n"
    "  {% endfor %}\n{{ eos_token }}",
    "json": "{{ messages | tojson }} {{ messages[0] | tojson(indent=2) }} "
    "{{ {'b': 1, 'a': '<'} | tojson(sort_keys=true) }}",
    "loops": "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}"
    "{{ m.content }}{% break %}{% endfor %}",
    "namespaces": "{% set n = namespace(a=0) %}{% for m in messages %}{% set n.a = n.a + 1 %}{% endfor %}{{ n.a }}",
    "dictionaries": "{{ dict(a=1) }} {{ dict.fromkeys(['x', 'y'], 2) }}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}|{% endfor %}",
    "dates": "{{ strftime_now('%Y') }}",
    "nothing": "{{ tools }} {{ documents }} {{ unknown }}",
}


def theirs(template, chat=CHAT, **how):
    return render_jinja_template([chat], chat_template=template, **NAMES, **how)[0][0]


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_render_as_in_transformers(name):
    for prompt in (False, True):
        assert render(TEMPLATES[name], CHAT, NAMES, prompt, False) == theirs(
            TEMPLATES[name], add_generation_prompt=prompt
        )


@pytest.mark.parametrize("name", ["chatml", "trimmed"])
@pytest.mark.parametrize("end", ["", " ", "\n", "Light scatters", " twice twice "])
def test_a_final_message_is_continued_as_in_transformers(name, end):
    chat = [*CHAT[:2], {"role": "assistant", "content": f"Well{end}"}]
    ours = render(TEMPLATES[name], chat, NAMES, False, True)
    assert ours == theirs(TEMPLATES[name], chat, continue_final_message=True)
    assert ours.endswith(f"Well{end}".rstrip() if name == "trimmed" else f"Well{end}")
    assert chat[-1]["content"] == f"Well{end}"  # the caller's message stays


def test_what_cannot_be_rendered_says_why():
    with pytest.raises(TemplateError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}", CHAT, NAMES, True, False)
    with pytest.raises(ValueError, match="ask for one of them"):
        render(CHATML, CHAT, NAMES, True, True)
    with pytest.raises(ValueError, match="give at least one"):
        render(CHATML, [], NAMES, True, False)
    with pytest.raises(ValueError, match="cannot be continued"):
        render("hello", CHAT, NAMES, False, True)


@pytest.mark.parametrize(
    "escape",
    [
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ dict.__class__.__mro__ }}",
        "{% set n = namespace(__class__=1) %}",
        "{% set n = namespace() %}{% set n._x = 1 %}",
    ],
)
def test_a_template_stays_in_its_sandbox(escape):
    with pytest.raises(SecurityError):
        render(escape, CHAT, NAMES, True, False)
    with pytest.raises(SecurityError):
        theirs(escape)


def test_messages_of_text_alone_are_plain():
    assert is_plain(CHAT)
    for other in (
        [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
        [{"role": "assistant", "content": "a", "reasoning": "b"}],
        ["text"],
        "text",
    ):
        assert not is_plain(other)
