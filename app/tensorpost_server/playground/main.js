/** The page: what is chosen, and one round of validating, running and showing after every change. */

import { Problem, getJson, hasKey, run, useKey, validate } from "./api.js";
import { element, inputControls, markViolations, renderFields, select, simpleControls, withCode } from "./forms.js";
import { readFrame } from "./frame.js";
import { readNpy } from "./npy.js";
import { bodyOf, callOf, documentOf, featureLevels, loadCatalogue, loadOperator, outputOf, suggest, tapProbe } from "./operators.js";
import { isPictureType, pictureTensor, readFile, smallNumbers, testCard } from "./pictures.js";
import { sentence, showErrors, showTiming, showVerdict } from "./result.js";
import { curlOf, fileNames, javascriptOf, jsonOf, pictureCurlOf, pythonOf, structsOf, takesPicture } from "./snippets.js";
import { MOST_INPUTS, drawTaps, measureTaps, tapRows, tooLong } from "./taps.js";
import { DATA_TYPES, bytesText, byProperty, shapeText, tensorOf } from "./tensor.js";
import { View, Viewer } from "./viewer.js";

const $ = (selector) => document.querySelector(selector);
const MOST_BYTES = 64 << 20, MOST_SECONDS = 3; // what runs without being asked to
const PAUSE = 120; // milliseconds after the last change

const state = {
  source: null, tensor: null, operator: null, texts: {}, extra: {}, outputs: {}, answer: null, verdict: null, call: null,
  tensors: {}, language: "json", outputSizes: "", outputType: "", filledIn: false,
};
const view = new View();
const announce = (text) => ($("#announcer").textContent = text);
const viewers = { input: new Viewer($("#input"), view, "Input", announce), output: new Viewer($("#output"), view, "Output", announce) };

// ---- input -----------------------------------------------------------------------------------------------------------

function useSource(source) {
  state.source = source;
  for (const button of document.querySelectorAll("[data-sample]")) button.setAttribute("aria-pressed", String(button.dataset.sample === source.sample));
  $("#picture-options").hidden = !source.pixels;
  makeTensor();
}

function makeTensor() {
  const { source } = state;
  const before = state.tensor?.shape.length;
  state.tensor = source.pixels ? pictureTensor(source.pixels, $("#type").value) : source.tensor;
  const { type, shape, bytes } = state.tensor;
  const reduced = source.reduced ? ` · reduced from ${source.original} (Longest side)` : "";
  $("#input .about").textContent = `${source.name} · ${type} · ${shapeText(shape)} · ${bytesText(bytes.length)}${reduced}`;
  viewers.input.show(state.tensor, { range: $("#range").value });
  view.set({ zoom: 1, x: 0.5, y: 0.5 });
  if (state.operator && before !== shape.length) fillIn();
  else changed();
}

async function openFile(file) {
  try {
    useSource({ ...(await readFile(file, Number($("#longest").value))), file });
    announce(`${file.name} opened`);
  } catch (error) {
    showErrors([error.message]);
  }
}

async function useSample(name) {
  if (name === "numbers") return useSource({ sample: name, name: "numbers", tensor: smallNumbers() });
  if (name === "card") return useSource({ sample: name, name: "test card", pixels: testCard() });
  const blob = await (await fetch("playground/sample.webp")).blob();
  return useSource({ ...(await readFile(new File([blob], "cat"), 0)), sample: name });
}

// ---- operator --------------------------------------------------------------------------------------------------------

async function useOperator(id) {
  state.operator = await loadOperator(id);
  $("#summary").replaceChildren(...withCode(sentence(state.operator.summary)));
  fillIn();
}

/** Fills every field in anew, for the operator and the shape that are chosen now. */
function fillIn() {
  const { operator, tensor } = state;
  state.texts = Object.fromEntries(operator.fields.map((field) => [field.key, suggest(field, operator, tensor.shape)]));
  Object.assign(state, { outputSizes: "", outputType: "", filledIn: true });
  state.extra = {};
  for (const input of operator.inputs.slice(1)) state.extra[input.name] = firstExtra(input, tensor);
  if (operator.inputs[0]?.array) state.extra[operator.inputs[0].name] = { from: "same" };
  showForm();
  changed();
}

function firstExtra(input, { type, shape }) {
  const known = input.types.map((name) => byProperty("directml", name) ?? byProperty("onnx", name)).filter(Boolean);
  if (input.optional) return { from: "none", type: known[0] ?? "float32", shape: "1", values: "1" };
  const ones = shape.map(() => 1).join(", "), channels = shape.at(-3) ?? 1;
  if (["FilterTensor", "W"].includes(input.field) && shape.length === 4) { // the mean of 3 x 3 elements
    return { from: "typed", type: known.includes(type) ? type : known[0], shape: `1, ${channels}, 3, 3`, values: (1 / (9 * channels)).toPrecision(4) };
  }
  const fits = known.includes(type) || known.length === 0;
  return { from: fits ? "same" : "typed", type: fits ? type : known.at(-1), shape: ones, values: "0" };
}

function showForm() {
  const { operator, texts, tensor } = state;
  const form = { operator, texts, rank: tensor.shape.length, changed: fieldChanged, redraw: showForm };
  const simple = simpleControls(operator, form);
  keepFocus($("#simple"), () => $("#simple").replaceChildren(...(simple ?? [])));
  renderFields($("#fields"), operator.fields, texts, (key) => { if (simple) keepFocus($("#fields"), showForm); changed(key); });
  if (operator.dialect === "directml") $("#fields").append(outputControls());
  $("#more").open = !simple || $("#more").open;
  const extra = operator.inputs.filter((input, index) => index > 0 || input.array);
  $("#inputs").replaceChildren(...extra.map((input) =>
    inputControls(input, state.extra[input.name], changed, async (file) => readNpy(new Uint8Array(await file.arrayBuffer())), Object.keys(DATA_TYPES)),
  ));
}

function fieldChanged(key) {
  const field = state.operator.fields.find((each) => each.key === key);
  for (const each of state.operator.fields) {
    const control = $(`#fields [data-field="${each.path}"]`);
    if (control && control.value !== state.texts[each.key]) control.value = state.texts[each.key];
  }
  changed(field);
}

function outputControls() {
  const sizes = element("input", { type: "text", id: "output-sizes", value: state.outputSizes, placeholder: "follow",
    oninput: () => { state.outputSizes = sizes.value; changed(); } });
  const types = Object.values(DATA_TYPES).map(({ directml }) => directml).filter(Boolean);
  const type = select([["", "follows"], ...types], state.outputType, (chosen) => { state.outputType = chosen; changed(); });
  type.id = "output-type";
  return element("div", { class: "pair" },
    element("div", { class: "field" }, element("label", { for: "output-sizes" }, "Output sizes"), sizes),
    element("div", { class: "field" }, element("label", { for: "output-type" }, "Output type"), type));
}

/** Draws a form anew without taking the focus away from the control that is used. */
function keepFocus(root, redraw) {
  const controls = () => [...root.querySelectorAll("input, select")];
  const index = controls().indexOf(document.activeElement);
  const caret = index >= 0 && document.activeElement.type === "text" ? document.activeElement.selectionStart : null;
  redraw();
  if (index < 0) return;
  const again = controls()[index];
  again?.focus();
  if (caret !== null && again?.type === "text") again.setSelectionRange(caret, caret);
}

function tensorsOfCall() {
  const { operator, tensor } = state, tensors = {};
  const listed = (text) => text.split(/[\s,]+/).filter(Boolean).map(Number);
  for (const [index, input] of operator.inputs.entries()) {
    const extra = state.extra[input.name];
    const own = index === 0 || extra.from === "same" ? tensor
      : extra.from === "typed" ? tensorOf(extra.type, listed(extra.shape), listed(extra.values))
      : extra.from === "file" ? extra.tensor : null;
    if (index > 0 && extra.from === "file" && !own) throw new Error(`${input.field}: choose an npy file.`);
    if (input.array) {
      tensors[`${input.name}_0`] = own;
      const second = index > 0 ? null : extra.from === "typed" ? tensorOf(extra.type, listed(extra.shape), listed(extra.values)) : extra.from === "file" ? extra.tensor : tensor;
      if (second && extra.from !== "none") tensors[`${input.name}_1`] = second;
    } else if (own) tensors[input.name] = own;
  }
  return tensors;
}

// ---- one round -------------------------------------------------------------------------------------------------------

let timer = 0, round = null, rounds = 0;

function changed() {
  $("#result").classList.add("stale");
  clearTimeout(timer);
  timer = setTimeout(() => update(false), PAUSE);
}

/** Validates, runs and shows; what was under way before is ended. */
async function update(asked) {
  clearTimeout(timer);
  if (!state.operator || !state.tensor) return;
  round?.abort();
  const { signal } = (round = new AbortController());
  state.call = null;
  try {
    await updateOnce(asked, signal);
  } catch (error) {
    if (error.name === "AbortError" || signal.aborted) return;
    if (error instanceof Problem && error.status === 401) return askForKey(error.message);
    showErrors([error.message]);
    await showCode();
  }
}

async function updateOnce(asked, signal) {
  const { operator, texts } = state;
  const level = $("#level").value, backend = $("#backend").value;
  const tensors = tensorsOfCall(), output = outputOf(state.outputSizes, state.outputType, tensors);
  const verdict = await validate(documentOf(operator, texts, tensors, output), operator.dialect === "directml" ? level : "", signal);
  signal.throwIfAborted();
  const first = state.filledIn; // nothing was changed by hand since the fields were filled in
  state.filledIn = false;
  if (first && !output && verdict.violations.some(({ path, code }) => path === "$.desc.OutputTensor" && code === "field-missing")) {
    state.outputSizes = state.tensor.shape.join(", "); // a first guess, to be changed
    showForm();
    return updateOnce(asked, signal);
  }
  markViolations($("#fields"), verdict.violations);
  if (!verdict.valid) {
    showErrors(verdict.violations.map(({ path, message }) => ({ path, message })), verdict);
    return showCode();
  }
  const outputs = verdict.outputs.length, answerType = verdict.outputs[0]?.dtype;
  const call = callOf(operator, texts, tensors, { output, level, backend, outputs, answerType });
  Object.assign(state, { verdict, call, tensors });
  const large = verdict.output_bytes > MOST_BYTES || (verdict.cost?.seconds ?? 0) > MOST_SECONDS;
  showVerdict(verdict, large && !asked);
  await showCode();
  if (large && !asked) return;
  const answer = await run({ ...call, body: bodyOf(tensors) }, signal);
  showAnswer(answer, verdict);
  await showTaps(signal);
  $("#result").dataset.round = String(++rounds); // tests wait for it
}

function showAnswer(answer, verdict) {
  state.answer = answer;
  state.outputs = answer.contentType.startsWith("application/x-npy") ? { [verdict.outputs[0].name]: readNpy(answer.bytes) } : readFrame(answer.bytes);
  const names = Object.keys(state.outputs), which = $("#output .which");
  which.hidden = names.length < 2;
  const chosen = which.querySelector("select").value;
  which.replaceChildren("tensor ", select(names, names.includes(chosen) ? chosen : names[0], showOutput));
  $("#output .save").disabled = false;
  showOutput();
  showTiming(answer);
  $("#result").classList.remove("stale");
}

function showOutput() {
  const names = Object.keys(state.outputs), tensor = state.outputs[$("#output .which select").value] ?? state.outputs[names[0]];
  const plane = $("#output .plane"), number = plane.querySelector("input"), range = $("#range").value;
  viewers.output.show(tensor, { range, plane: Number(number.value) || 0 });
  viewers.input.show(state.tensor, { range, plane: Number(number.value) || 0 });
  const planes = Math.max(tensor ? viewers.output.layout.planes : 1, viewers.input.layout.planes);
  plane.hidden = planes < 2;
  number.max = planes - 1;
  $("#output .about").textContent = tensor ? `${tensor.type} · ${shapeText(tensor.shape)} · ${bytesText(tensor.bytes.length)}` : "a type that the page does not show";
}

async function showTaps(signal) {
  const probe = tapProbe(state.operator, state.texts, state.tensor.shape), card = $("#taps-card");
  card.hidden = !probe || state.operator.inputs.length > 1;
  card.parentElement.classList.toggle("alone", card.hidden);
  if (card.hidden) return;
  if (state.tensor.shape.length < 2) $("#taps-axis").value = "-1";
  const asked = probe(Number($("#taps-axis").value));
  if (tooLong(asked.length)) return void $("#taps").replaceChildren(element("p", { class: "hint" }, "This axis is too long to be measured here."));
  try {
    const taps = await measureTaps(asked, signal);
    $("#taps").replaceChildren(drawTaps(taps, asked.tiles));
    $("#taps-rows").replaceChildren(...tapRows(taps).map(([output, reads]) => element("tr", {}, element("th", { scope: "row" }, output), element("td", {}, reads))));
    const part = taps.inputs < taps.length ? `The first ${MOST_INPUTS} of ${taps.length} elements. ` : asked.tiles && state.tensor.shape.at(asked.axis) > taps.length ? "Drawn for an axis of 4 elements. " : "";
    $("#taps-hint").textContent = `${part}Measured by sending one-hot rows through the operator. A dot is the mean position that an output reads.`;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    $("#taps").replaceChildren(element("p", { class: "hint" }, error.message));
  }
}

// ---- code ------------------------------------------------------------------------------------------------------------

const LANGUAGES = {
  json: ["Descriptor", () => jsonOf(state.verdict.op)],
  curl: ["curl", (names) => curlOf(state.call, names)],
  picture: ["curl, picture", () => pictureCurlOf(state.call, state.source, state.tensor.type)],
  python: ["Python", (names) => pythonOf(state.call, names, state.verdict, { level: $("#level").value, backend: $("#backend").value })],
  javascript: ["JavaScript", (names) => javascriptOf(state.call, names)],
  c: ["DirectML, C++", () => structsOf(state.verdict)],
};

async function showCode() {
  $("#copy").disabled = !state.call;
  $("#code-hint").textContent = "";
  if (!state.call) return void ($("#code code").textContent = "This call is not valid yet.");
  $("#tab-picture").hidden = !takesPicture(state.source, state.tensors, state.verdict);
  if (state.language === "picture" && $("#tab-picture").hidden) return chooseTab("curl");
  const [, write] = LANGUAGES[state.language];
  const count = Object.keys(state.tensors).length, names = fileNames(state.call, count);
  $("#code code").textContent = await write(names);
  const hints = [];
  if (count === 1 && ["curl", "python", "javascript"].includes(state.language)) hints.push(`${names.input} is what Save beside Input gives.`);
  if (state.source.reduced && takesPicture({ ...state.source, reduced: false }, state.tensors, state.verdict)) {
    hints.push("To send the picture file itself (curl, picture), set Longest side to “as it is”.");
  }
  $("#code-hint").textContent = hints.join(" ");
}

function showTabs() {
  const tabs = Object.entries(LANGUAGES).map(([id, [text]]) => element("button", { type: "button", role: "tab", id: `tab-${id}`, "aria-controls": "code",
    "aria-selected": String(id === state.language), hidden: id === "picture", tabindex: id === state.language ? "0" : "-1", onclick: () => chooseTab(id) }, text));
  $(".tabs").replaceChildren(...tabs);
}

async function chooseTab(id) {
  state.language = id;
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const chosen = tab.id === `tab-${id}`;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
  }
  $("#code").setAttribute("aria-labelledby", `tab-${id}`);
  await showCode();
}

async function copyCode() {
  const text = $("#code code").textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch { // no permission, or the page did not come over https or from this machine
    getSelection().selectAllChildren($("#code code"));
    document.execCommand("copy");
  }
  $("#copy").textContent = "Copied";
  announce("Copied");
  setTimeout(() => ($("#copy").textContent = "Copy"), 1500);
}

function save(bytes, name) {
  const link = element("a", { href: URL.createObjectURL(new Blob([bytes])), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// ---- key -------------------------------------------------------------------------------------------------------------

function askForKey(message = "") {
  $("#key-error").textContent = hasKey() || message.includes("valid") ? message : "";
  if (!$("#key").open) $("#key").showModal();
}

async function start() {
  try {
    const [catalogue, { devices }] = await Promise.all([loadCatalogue(), getJson("v1/devices")]);
    state.names = { directml: [...catalogue.directml.keys()].sort(), onnx: [...catalogue.onnx.keys()].sort() };
    $("#level").append(...featureLevels().map((level) => element("option", { value: level }, level)));
    const names = [...new Set(devices.filter(({ reason }) => !reason).map(({ name }) => name))];
    $("#backend").append(...names.map((name) => element("option", {}, name)));
  } catch (error) {
    if (error.status === 401) return askForKey(error.message);
    return showErrors([error.message]);
  }
  listOperators("");
  await useSample("photo");
  await useOperator($("[name=kind]:checked").value === "any" ? $("#operator").value : $("[name=kind]:checked").value);
}

function listOperators(filter) {
  const { directml, onnx } = state.names, words = filter.toLowerCase().split(/\s+/);
  const matching = (names) => names.filter((name) => words.every((word) => name.toLowerCase().replaceAll("_", " ").includes(word.replaceAll("_", " "))));
  const before = $("#operator").value;
  const group = (label, dialect, names) => {
    const made = element("optgroup", { label });
    made.append(...matching(names).map((name) => element("option", { value: `${dialect}:${name}` }, name)));
    return made;
  };
  $("#operator").replaceChildren(group("DirectML", "directml", directml), group("ONNX", "onnx", onnx));
  $("#operator").value = before;
  if (!$("#operator").value) $("#operator").selectedIndex = 0;
}

const chosenOperator = () => {
  const kind = $("[name=kind]:checked").value;
  $("#any").hidden = kind !== "any";
  return kind === "any" ? $("#operator").value : kind;
};

function listen() {
  for (const button of document.querySelectorAll("[data-sample]")) button.addEventListener("click", () => useSample(button.dataset.sample));
  $("#file").addEventListener("change", ({ target }) => target.files[0] && openFile(target.files[0]));
  $("#type").append(...Object.keys(DATA_TYPES).filter(isPictureType).map((type) => element("option", {}, type)));
  $("#type").addEventListener("change", makeTensor);
  $("#longest").addEventListener("change", () => state.source?.file && openFile(state.source.file));
  for (const radio of document.querySelectorAll("[name=kind]")) radio.addEventListener("change", () => useOperator(chosenOperator()));
  $("#filter").addEventListener("input", ({ target }) => {
    const before = $("#operator").value;
    listOperators(target.value);
    if ($("#operator").value && $("#operator").value !== before) useOperator(chosenOperator());
  });
  $("#operator").addEventListener("change", () => useOperator(chosenOperator()));
  for (const id of ["#level", "#backend"]) $(id).addEventListener("change", changed);
  $("#controls").addEventListener("submit", (event) => { event.preventDefault(); update(true); });
  $("#range").addEventListener("change", showOutput);
  $("#output .plane input").addEventListener("input", showOutput);
  $("#taps-axis").addEventListener("change", () => showTaps(round?.signal));
  $("#zoom-in").addEventListener("click", () => view.set({ zoom: view.zoom * 2 }));
  $("#zoom-out").addEventListener("click", () => view.set({ zoom: view.zoom / 2 }));
  $("#zoom-fit").addEventListener("click", () => view.set({ zoom: 1, x: 0.5, y: 0.5 }));
  view.add({ draw: () => {
    $("#zoom").textContent = view.zoom > 1 ? `${Number(view.zoom.toPrecision(3))} ×` : "fit";
    for (const canvas of document.querySelectorAll(".viewers canvas")) canvas.classList.toggle("zoomed", view.zoom > 1);
  } });
  $("#input .save").addEventListener("click", () => state.call && save(bodyOf(state.tensors), fileNames(state.call, 1).input));
  $("#output .save").addEventListener("click", () => save(state.answer.bytes, fileNames(state.call, 1).output));
  $("#copy").addEventListener("click", copyCode);
  $(".tabs").addEventListener("keydown", (event) => {
    const ids = Object.keys(LANGUAGES).filter((id) => !$(`#tab-${id}`).hidden), step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const next = step ? ids[(ids.indexOf(state.language) + step + ids.length) % ids.length] : { Home: ids[0], End: ids.at(-1) }[event.key];
    if (!next) return;
    event.preventDefault();
    chooseTab(next).then(() => $(`#tab-${next}`).focus());
  });
  $("#key-open").addEventListener("click", () => askForKey());
  $("#key-cancel").addEventListener("click", () => $("#key").close("cancel"));
  $("#key").addEventListener("close", () => {
    if ($("#key").returnValue !== "use") return;
    useKey($("#key-text").value.trim());
    start();
  });
  addEventListener("dragover", (event) => { event.preventDefault(); document.body.classList.add("dropping"); });
  addEventListener("dragleave", ({ relatedTarget }) => relatedTarget || document.body.classList.remove("dropping"));
  addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dropping");
    if (event.dataTransfer.files[0]) openFile(event.dataTransfer.files[0]);
  });
}

showTabs();
listen();
start();
