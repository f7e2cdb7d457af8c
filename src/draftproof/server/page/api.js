// Requests to the server: one event at a time, and errors as one line.

const address = (path) => new URL(path, document.baseURI);

export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export async function get(path, key) {
  const response = await reach(address(path), { headers: authorization(key), cache: "no-store" });
  return await response.json();
}

/** The chunks of a streamed answer, as objects. */
export async function* stream(body, { key, signal }) {
  const headers = { "Content-Type": "application/json", ...authorization(key) };
  const request = { method: "POST", headers, body: JSON.stringify({ ...body, stream: true }), signal };
  const response = await reach(address("v1/chat/completions"), request);
  try {
    for await (const data of events(response.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ServerError(oneLine(chunk.error.message ?? chunk.error));
      yield chunk;
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ServerError) throw error;
  }
  throw new ServerError("The connection was lost before the text ended.");
}

/** The data of each server-sent event of a stream of bytes. */
export async function* events(bytes) {
  const reader = bytes.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    while (true) {
      const { value, done } = await reader.read();
      rest += done ? "\n\n" : value;
      const blocks = rest.split(/\r?\n\r?\n/);
      rest = blocks.pop();
      for (const block of blocks) {
        const lines = block.split(/\r?\n/).filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
      }
      if (done) return;
    }
  } finally {
    await reader.cancel().catch(() => {}); // a stream that has failed cannot be cancelled
  }
}

function authorization(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function reach(url, request) {
  let response;
  try {
    response = await fetch(url, request);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server does not answer: check that draftproof serve is still running.");
  }
  if (response.ok) return response;
  const text = await response.text();
  throw new ServerError(explain(text) || `The server answered ${response.status} ${response.statusText}.`, response.status);
}

/** The message of an error's body: OpenAI's form, FastAPI's, or none. */
function explain(text) {
  try {
    const body = JSON.parse(text);
    const message = body.error?.message ?? body.error ?? body.detail?.[0]?.msg ?? body.detail ?? body.message;
    return message ? oneLine(message) : "";
  } catch {
    return "";
  }
}

function oneLine(message) {
  return (typeof message === "string" ? message : JSON.stringify(message)).replace(/\s+/g, " ").trim();
}
