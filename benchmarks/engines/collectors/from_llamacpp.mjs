// Transcripts from llama.cpp through node-llama-cpp: plain, lookup or draft. Runs with node in its own environment.
//
// `node from_llamacpp.mjs job.json transcripts.jsonl`, in the folder that has node_modules; benchmarks/engines/jobs.py
// says what a job is.
import {readFileSync, writeFileSync, appendFileSync} from "node:fs";
import {createRequire} from "node:module";
import {pathToFileURL} from "node:url";

const from = createRequire(pathToFileURL(process.cwd() + "/"));
const {getLlama, DraftSequenceTokenPredictor, InputLookupTokenPredictor, LlamaLogLevel} =
    await import(pathToFileURL(from.resolve("node-llama-cpp")));
const {version} = JSON.parse(readFileSync("node_modules/node-llama-cpp/package.json"));

const K = 4; // draft tokens a step
const AT_ONCE = 16; // texts side by side
const [jobFile, out] = process.argv.slice(2);
const job = JSON.parse(readFileSync(jobFile));
if (!["plain", "lookup", "draft"].includes(job.mode)) {
    console.error(`llama.cpp has no mode "${job.mode}"`);
    process.exit(1);
}

const llama = await getLlama({gpu: false, build: "never", maxThreads: 1, logLevel: LlamaLogLevel.error});
const opened = async (path) =>
    await (await llama.loadModel({modelPath: path})).createContext({
        sequences: AT_ONCE,
        contextSize: job.context,
        batchSize: 64 * AT_ONCE,
        flashAttention: false,
        experimentalKvCacheKeyType: "F32",
        experimentalKvCacheValueType: "F32"
    });
const target = await opened(job.model);
const draft = job.mode === "draft" ? await opened(job.draft) : null;

function predictor() {
    if (job.mode === "draft")
        return new DraftSequenceTokenPredictor(draft.getSequence(), {minTokens: 1, maxTokens: K, minConfidence: 0});
    if (job.mode === "lookup")
        return new InputLookupTokenPredictor({patternLength: {min: 1, max: 3}, predictionLength: {min: 1, max: K}});
    return undefined;
}

// Defaults of node-llama-cpp are top-k 40, top-p 0.95 and the clock's second as the seed: all are set.
const neutral = {topK: 0, topP: 1, minP: 0};
const names = {temperature: "temperature", top_k: "topK", top_p: "topP", min_p: "minP"};
const controls = Object.fromEntries(Object.entries(job.sampling).map(([name, value]) => [names[name], value]));

async function text(sequence, prompt, seed) {
    await sequence.clearHistory();
    if (job.mode === "lookup") sequence.tokenPredictor.updateInputTokens(prompt);
    const output = [];
    for await (const token of sequence.evaluate(prompt, {...neutral, ...controls, seed, yieldEogToken: true})) {
        output.push(token);
        if (output.length >= job.max_new_tokens || job.end_tokens.includes(token)) break;
    }
    return output;
}

const wanted = job.prompts.flatMap((prompt) => Array(job.samples).fill(prompt));
const outputs = Array(wanted.length);
const counts = {accepted: 0, drafted: 0};
let next = 0;
async function worker() {
    const guesser = predictor();
    const sequence = target.getSequence(guesser && {tokenPredictor: guesser});
    while (next < wanted.length) {
        const i = next++;
        outputs[i] = await text(sequence, wanted[i], job.seed * 1000003 + i);
    }
    const {validated, refuted} = sequence.tokenPredictions;
    counts.accepted += validated;
    counts.drafted += validated + refuted;
}
await Promise.all(Array.from({length: AT_ONCE}, worker));

const engine = `llama.cpp ${llama.llamaCppRelease.release} in node-llama-cpp ${version}`;
writeFileSync(out, "");
wanted.forEach((prompt, i) =>
    appendFileSync(out, JSON.stringify({prompt_token_ids: prompt, output_token_ids: outputs[i], sampling: job.sampling, engine}) + "\n"));
console.log(JSON.stringify({...counts, settings: {kvCache: "F32", ...(job.mode === "plain" ? {} : {maxTokens: K})}}));
process.exit(0);
