/** The server's public API. Addresses are relative to the page, so that it works below any path of a proxy. */

const url = (path) => new URL(path, document.baseURI).href;
let apiKey = "";

/** The key is kept in this variable only: not in storage, not in the address. */
export const useKey = (key) => (apiKey = key);
export const hasKey = () => apiKey !== "";

/** What the server said no with: an RFC 9457 problem. */
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail ?? body.title ?? `The server answered with status ${status}.`);
    this.status = status;
    this.violations = body.violations ?? [];
  }
}

async function send(path, options = {}) {
  const headers = { ...options.headers, ...(apiKey && { Authorization: `Bearer ${apiKey}` }) };
  let answer;
  try {
    answer = await fetch(url(path), { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { detail: "The server cannot be reached. Is it still running?" });
  }
  if (!answer.ok) throw new Problem(answer.status, await answer.json().catch(() => ({})));
  return answer;
}

export const getJson = async (path) => (await send(path)).json();

export async function validate(document_, level, signal) {
  const query = level ? `?feature_level=${level}` : "";
  const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(document_), signal };
  return (await send(`v1/validate${query}`, options)).json();
}

/** Stores an ONNX model under its digest. @returns what `GET /v1/graphs/{name}` says of it */
export async function storeModel(bytes) {
  return (await send("v1/graphs", { method: "PUT", headers: { "Content-Type": "application/onnx" }, body: bytes })).json();
}

/**
 * Runs a call, and measures it.
 *
 * @param {{path: string, contentType: string, accept: string, body: Uint8Array}} call
 * @returns {Promise<{bytes: Uint8Array, contentType: string, total: number, stages: [string, number][], device: string}>}
 *   times in milliseconds
 */
export async function run({ path, contentType, accept, body }, signal) {
  const begin = performance.now();
  const answer = await send(path, { method: "POST", headers: { "Content-Type": contentType, Accept: accept }, body, signal });
  const bytes = new Uint8Array(await answer.arrayBuffer());
  const total = performance.now() - begin;
  const entries = (answer.headers.get("Server-Timing") ?? "").split(",");
  const stages = entries.map((entry) => /^\s*(\w+).*?dur=([\d.]+)/.exec(entry)).filter(Boolean);
  const device = `${answer.headers.get("Tensorpost-Backend") ?? "?"}, ${answer.headers.get("Tensorpost-Device") ?? "?"}`;
  const contentType_ = answer.headers.get("Content-Type");
  return { bytes, contentType: contentType_, total, stages: stages.map(([, name, ms]) => [name, Number(ms)]), device };
}

export const absolute = url;
