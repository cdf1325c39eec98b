/** What is said about a call: its verdict, what is wrong with it, and where its time went. */

import { element } from "./forms.js";
import { bytesText, shapeText } from "./tensor.js";

const $ = (selector) => document.querySelector(selector);

export const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);

/** Says what is wrong; the output that is still shown is of an earlier call. */
export function showErrors(errors, verdict) {
  const items = errors.map((error) => (typeof error === "string" ? element("li", {}, error)
    : element("li", {}, element("code", {}, error.path.replace("$.desc.", "").replace("$.", "")), ` ${error.message}`)));
  const level = verdict?.lowest_feature_level ? ` It is legal from feature level ${verdict.lowest_feature_level} on.` : "";
  $("#verdict").replaceChildren(
    element("p", { class: "bad" }, verdict ? `This call is not valid.${level}` : "This did not work."),
    element("ul", {}, ...items),
  );
  $("#result").classList.add("stale");
}

/** @param {boolean} waits whether the call is so large that it runs only when asked for */
export function showVerdict(verdict, waits) {
  const outputs = verdict.outputs.map(({ dtype, shape }) => `${dtype} ${shapeText(shape)}`).join(", ");
  const isOnnx = verdict.op && "op_type" in verdict.op;
  const level = isOnnx ? loweringText(verdict) : verdict.lowest_feature_level ? `DirectML feature level ${verdict.lowest_feature_level} or later.` : "A chain with ONNX nodes.";
  const { seconds, memory_bytes: memory } = verdict.cost ?? {};
  const time = seconds < 0.001 ? "less than 1 ms" : seconds < 0.1 ? `${Number((1000 * seconds).toPrecision(2))} ms` : `${seconds} s`;
  const cost = verdict.cost ? ` Estimate: ${time} of computing, ${bytesText(memory)} of memory.` : "";
  $("#verdict").replaceChildren(
    element("p", { class: "good" }, `Valid. ${level}`),
    element("p", { class: "about" }, `Output ${outputs}, ${bytesText(verdict.output_bytes)}.${cost}${waits ? " This is large: press Run." : ""}`),
    ...(verdict.warnings ?? []).map((warning) => element("p", { class: "about" }, warning)),
  );
}

function loweringText({ lowering, lowest_feature_level: level }) {
  if (!lowering) return "";
  const op = lowering.op ? ` as ${lowering.op.type.replace("DML_OPERATOR_", "")}${level ? `, feature level ${level} or later` : ""}` : "";
  return `In DirectML: ${lowering.verdict}${op}.${lowering.reason ? ` ${sentence(lowering.reason)}.` : ""}`;
}

/** A bar and a list of the stages, and of the time that no stage took, in milliseconds. */
export function showTiming({ total, stages, device }) {
  const rest = Math.max(0, total - stages.reduce((sum, [, ms]) => sum + ms, 0));
  const rows = [...stages, ["network and browser", rest]];
  const milliseconds = (ms) => `${ms < 0.995 ? ms.toFixed(2) : ms.toFixed(1)} ms`;
  $("#timing-bar").replaceChildren(...rows.map(([, ms], index) => {
    const part = element("i");
    part.style.cssText = `flex-grow:${Math.max(ms, 0.001)};background:var(--stage-${Math.min(index, 5)})`;
    return part;
  }));
  $("#timing").replaceChildren(...rows.flatMap(([name, ms], index) => {
    const term = element("dt", {}, name);
    term.style.setProperty("--colour", `var(--stage-${Math.min(index, 5)})`);
    return [term, element("dd", {}, milliseconds(ms))];
  }));
  $("#timing-total").textContent = `${milliseconds(total)} in all · ${device}`;
}
