/** The page: what is chosen, and one round of validating, running and showing after every change. */

import { Problem, getJson, hasKey, run, useKey, validate } from "./api.js";
import { Chain } from "./chain.js";
import { readChain } from "./chain_document.js";
import { ChainList } from "./chain_list.js";
import { chainJavascriptOf, chainPythonOf, chainStructsOf } from "./chain_snippets.js";
import { CodeCard } from "./code_card.js";
import { element, inputControls, keepFocus, markViolations, renderFields, select, simpleControls, withCode } from "./forms.js";
import { readFrame } from "./frame.js";
import { readNpy } from "./npy.js";
import { bodyOf, callOf, documentOf, featureLevels, loadCatalogue, loadOperator, outputOf, tapProbe } from "./operators.js";
import { ModelCard } from "./model_card.js";
import { OperatorPicker } from "./operator_picker.js";
import { isPictureType, pictureTensor, readFile, smallNumbers, testCard } from "./pictures.js";
import { sentence, showErrors, showTiming, showVerdict } from "./result.js";
import { curlOf, fileNames, javascriptOf, jsonOf, pictureCurlOf, pythonOf, structsOf, takesPicture } from "./snippets.js";
import { copyOf, named, newStep, stepOf, tensorsOf, titleOf } from "./steps.js";
import { drawTaps, measureTaps, tapRows, tooLong } from "./taps.js";
import { DATA_TYPES, bytesText, byProperty, shapeText } from "./tensor.js";
import { View, Viewer } from "./viewer.js";

const $ = (selector) => document.querySelector(selector);
const MOST_BYTES = 64 << 20, MOST_SECONDS = 3; // what runs without being asked to
const PAUSE = 120; // milliseconds after the last change

/**
 * `step` is what the form shows: one of the chain's, or an operator that is in no chain yet and reads what the chain makes.
 * `own` is the tensor that it reads; `filledIn` whether nothing of it was changed by hand.
 */
const state = {
  source: null, tensor: null, step: null, own: null, outputs: {}, answer: null, verdict: null, call: null, tensors: {}, filledIn: false,
};
const chain = new Chain();
const levelNow = () => $("#level").value;
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
  showPlane("input", state.tensor);
  view.set({ zoom: 1, x: 0.5, y: 0.5 });
  modelCard.sourceChanged();
  if (!chain.steps.length) state.own = state.tensor;
  if (state.step && !chain.steps.length && before !== shape.length) showStep(newStep(state.step.operator, state.own), state.own, true);
  else changed();
}

async function openFile(file) {
  if (/\.onnx$/i.test(file.name)) return modelCard.open(file);
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

let choices = 0; // of steps to show; the last one counts

/** An operator of the picker, with fields filled in for what the chain makes so far. */
async function useOperator(id) {
  const choice = ++choices;
  try {
    const operator = await loadOperator(id), own = await chain.ownAt(chain.steps.length, state.tensor, levelNow());
    if (choice === choices) showStep(newStep(operator, own), own, true);
  } catch (error) {
    fail(error);
  }
}

/** Puts a step into the form. @param {boolean} filledIn whether nothing of it was changed by hand yet */
function showStep(step, own, filledIn = false) {
  Object.assign(state, { step, own, filledIn });
  $("#summary").replaceChildren(...withCode(sentence(step.operator.summary)));
  picker.show(step.operator.id);
  showForm();
  showChain();
  changed();
}

function showForm() {
  const { own, step: { operator, texts, extra: said } } = state;
  const form = { operator, texts, rank: own.shape.length, changed: fieldChanged, redraw: showForm };
  const simple = simpleControls(operator, form);
  keepFocus($("#simple"), () => $("#simple").replaceChildren(...(simple ?? [])));
  renderFields($("#fields"), operator.fields, texts, (key) => { if (simple) keepFocus($("#fields"), showForm); changed(key); });
  if (operator.dialect === "directml") $("#fields").append(outputControls());
  $("#more").open = !simple || $("#more").open;
  const extra = operator.inputs.filter((input, index) => index > 0 || input.array);
  $("#inputs").replaceChildren(...extra.map((input) =>
    inputControls(input, said[input.name], changed, async (file) => readNpy(new Uint8Array(await file.arrayBuffer())), Object.keys(DATA_TYPES)),
  ));
}

function fieldChanged(key) {
  const { operator, texts } = state.step, field = operator.fields.find((each) => each.key === key);
  for (const each of operator.fields) {
    const control = $(`#fields [data-field="${each.path}"]`);
    if (control && control.value !== texts[each.key]) control.value = texts[each.key];
  }
  changed(field);
}

function outputControls() {
  const { step } = state;
  const sizes = element("input", { type: "text", id: "output-sizes", value: step.outputSizes, placeholder: "follow",
    oninput: () => { step.outputSizes = sizes.value; changed(); } });
  const types = Object.values(DATA_TYPES).map(({ directml }) => directml).filter(Boolean);
  const type = select([["", "follows"], ...types], step.outputType, (chosen) => { step.outputType = chosen; changed(); });
  type.id = "output-type";
  return element("div", { class: "pair" },
    element("div", { class: "field" }, element("label", { for: "output-sizes" }, "Output sizes"), sizes),
    element("div", { class: "field" }, element("label", { for: "output-type" }, "Output type"), type));
}

// ---- chain -----------------------------------------------------------------------------------------------------------

const chainList = new ChainList($("#steps"), { show: lookAt, move: moveStep, remove: removeStep });

function showChain() {
  const { steps, facts } = chain, { step } = state, place = steps.indexOf(step);
  chainList.draw(steps, step, facts);
  $("#chain-save").disabled = !steps.length;
  $("#chain-hint").textContent = !steps.length ? "Steps run one after another in one request. Add this operator, then choose the next."
    : place < 0 ? `Shown: the result of ${step.operator.name} after ${steps.length} step${steps.length > 1 ? "s" : ""}. It is not added yet.`
    : `Shown: the result of step ${place + 1} of ${steps.length}. Its fields are in the form; another operator there is the next step.`;
}

/** Puts a step into the form, or an operator that stands after all of them. */
async function lookAt(step) {
  const choice = ++choices, place = chain.with(step).indexOf(step);
  const own = await chain.ownAt(place, state.tensor, levelNow()).catch(fail);
  if (own && choice === choices) showStep(step, own);
}

async function addStep() {
  const { steps } = chain, { step } = state, added = named(steps.includes(step) ? copyOf(step) : step, steps);
  steps.push(added);
  announce(`${titleOf(added, steps.length - 1)}, added`);
  await lookAt(added);
}

function moveStep(step, by) {
  announce(`${step.operator.name} is step ${chain.move(step, by) + 1} now`);
  return lookAt(state.step).then(() => chainList.focus(step.name, by < 0 ? "up" : "down"));
}

async function removeStep(step) {
  announce(`${titleOf(step, chain.steps.indexOf(step))}, removed`);
  const next = chain.remove(step);
  await lookAt(state.step === step && next ? next : state.step);
  if (next) chainList.focus(next.name, "show");
  else $("#step-add").focus();
}

async function openChain(file) {
  try {
    const { steps, declared } = await readChain(await file.text(), state.tensor);
    fitInput(declared);
    chain.open(steps);
    announce(`${file.name} opened: ${steps.length} step${steps.length > 1 ? "s" : ""}`);
    await lookAt(steps.at(-1));
  } catch (error) {
    fail(error);
  }
}

/** Makes the input the one that a chain declares, or says why it is not. */
function fitInput({ data_type: name, sizes }) {
  const type = Object.keys(DATA_TYPES).find((each) => [each, DATA_TYPES[each].directml, DATA_TYPES[each].frame].includes(name));
  const { source, tensor } = state, asked = "Choose such an input, then open the file again.";
  if (Array.isArray(sizes) && (sizes.length !== tensor.shape.length || sizes.some((size, axis) => typeof size === "number" && size !== tensor.shape[axis])))
    throw new Error(`This chain takes a tensor of ${shapeText(sizes)}; the input here is ${shapeText(tensor.shape)}. ${asked}`);
  if (name === undefined || type === tensor.type) return;
  if (!type || !source.pixels || !isPictureType(type)) throw new Error(`This chain takes ${name}; the input here is ${tensor.type}. ${asked}`);
  $("#type").value = type;
  makeTensor();
}

async function saveChain() {
  try {
    save(`${jsonOf(await chain.document(state.tensor, levelNow()))}\n`, "chain.json");
  } catch (error) {
    fail(error);
  }
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
  if (!state.step || !state.tensor) return;
  round?.abort();
  const { signal } = (round = new AbortController());
  state.call = null;
  try {
    await updateOnce(asked, signal);
  } catch (error) {
    if (error.name === "AbortError" || signal.aborted) return;
    fail(error);
    await showCode();
  }
}

/** Says what went wrong: at its steps, where the server names them. */
function fail(error) {
  if (error instanceof Problem && error.status === 401) return askForKey(error.message);
  const violations = error.violations ?? [];
  if (!violations.some((each) => stepOf(each) >= 0)) return showErrors([error.message]);
  showErrors(chain.tellAtSteps(violations, state.step));
  showChain();
}

async function updateOnce(asked, signal) {
  const { step, tensor } = state, level = levelNow(), backend = $("#backend").value;
  const found = await (chain.steps.length ? chain.validate(step, tensor, level, signal) : validateAlone(level, signal));
  signal.throwIfAborted();
  state.own = found.reads ?? state.own;
  const first = state.filledIn; // nothing was changed by hand since the fields were filled in
  state.filledIn = false;
  const missing = found.own.some(({ path, code }) => path === "$.desc.OutputTensor" && code === "field-missing");
  if (first && missing && !step.outputSizes && !step.outputType) {
    step.outputSizes = state.own.shape.join(", "); // a first guess, to be changed
    showForm();
    return updateOnce(asked, signal);
  }
  markViolations($("#fields"), found.own);
  showChain();
  const { verdict } = found;
  if (!verdict?.valid) {
    showErrors(found.errors, verdict);
    return showCode();
  }
  Object.assign(state, { verdict, tensors: found.tensors, call: found.callOf({ level, backend }), shown: found });
  const large = verdict.output_bytes > MOST_BYTES || (verdict.cost?.seconds ?? 0) > MOST_SECONDS;
  showVerdict(verdict, large && !asked);
  await showCode();
  if (large && !asked) return;
  const answer = await run({ ...state.call, body: bodyOf(found.tensors, state.call) }, signal);
  showAnswer(answer, verdict);
  await showTaps(signal);
  $("#result").dataset.round = String(++rounds); // tests wait for it
}

/** The operator by itself, as a request of one operator. */
async function validateAlone(level, signal) {
  const { step: { operator, texts, outputSizes, outputType }, step, tensor } = state;
  const tensors = tensorsOf(step, tensor), output = outputOf(outputSizes, outputType, tensors);
  const verdict = await validate(documentOf(operator, texts, tensors, output), operator.dialect === "directml" ? level : "", signal);
  return { verdict, tensors, reads: tensor, own: verdict.violations, errors: verdict.violations,
    callOf: (options) => callOf(operator, texts, tensors, { ...options, output, outputs: verdict.outputs.length, answerType: verdict.outputs[0]?.dtype }) };
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
  showPlane("output", tensor);
  showPlane("input", state.tensor);
  $("#output .about").textContent = tensor ? `${tensor.type} · ${shapeText(tensor.shape)} · ${bytesText(tensor.bytes.length)}` : "a type that the page does not show";
}

/** Shows the plane of a tensor that was chosen beside it: of a volume or a batch there are several. */
function showPlane(name, tensor) {
  const plane = $(`#${name} .plane`), number = plane.querySelector("input");
  viewers[name].show(tensor, { range: $("#range").value, plane: Number(number.value) || 0 });
  const planes = tensor ? viewers[name].layout.planes : 1;
  plane.hidden = planes < 2;
  number.max = planes - 1;
}

async function showTaps(signal) {
  const { operator, texts } = state.step, card = $("#taps-card");
  const probe = tapProbe(operator, texts, state.tensor.shape);
  card.hidden = !probe || operator.inputs.length > 1 || chain.steps.length > 0; // a later step does not read the input that is shown
  card.parentElement.classList.toggle("alone", card.hidden);
  if (card.hidden) return;
  if (state.tensor.shape.length < 2) $("#taps-axis").value = "-1";
  const asked = probe(Number($("#taps-axis").value));
  if (tooLong(asked.length)) return void $("#taps").replaceChildren(element("p", { class: "hint" }, "This axis is too long to be measured here."));
  try {
    const taps = await measureTaps(asked, signal);
    $("#taps").replaceChildren(drawTaps(taps, asked.tiles));
    $("#taps-rows").replaceChildren(...tapRows(taps).map(([output, reads]) => element("tr", {}, element("th", { scope: "row" }, output), element("td", {}, reads))));
    const part = taps.inputs < taps.length ? `The first ${taps.inputs} of ${taps.length} elements. ` : asked.tiles && state.tensor.shape.at(asked.axis) > taps.length ? "Drawn for an axis of 4 elements. " : "";
    $("#taps-hint").textContent = `${part}Measured by sending one-hot rows through the operator. A dot is the mean position that an output reads.`;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    $("#taps").replaceChildren(element("p", { class: "hint" }, error.message));
  }
}

// ---- code ------------------------------------------------------------------------------------------------------------

const codeCard = new CodeCard({ json: "JSON", curl: "curl", picture: "curl, picture", python: "Python", javascript: "JavaScript", c: "DirectML, C++" }, announce);

function showCode() {
  if (!state.call) return codeCard.show(null);
  const { call, verdict, tensors, source, tensor, shown: { graph, steps, walked, later } } = state;
  const count = Object.keys(tensors).length, names = fileNames(call, count), options = { level: levelNow(), backend: $("#backend").value };
  const alone = {
    json: () => jsonOf(verdict.op), python: () => pythonOf(call, names, verdict, options), javascript: () => javascriptOf(call, names), c: () => structsOf(verdict),
  };
  const chained = {
    json: () => jsonOf(graph), python: () => chainPythonOf(graph, names, options), javascript: () => chainJavascriptOf(graph, call, names),
    c: () => chainStructsOf(graph, steps, walked, verdict.lowest_feature_level),
  };
  const languages = { ...(graph ? chained : alone), curl: () => curlOf(call, names), picture: () => pictureCurlOf(call, source, tensor.type) };
  const takes = (picture) => !call.metadata && takesPicture(picture, tensors, verdict);
  const hint = (language) => [
    ...(count === 1 && ["curl", "python", "javascript"].includes(language) ? [`${names.input} is what Save beside Input gives.`] : []),
    ...(source.reduced && takes({ ...source, reduced: false }) ? ["To send the picture file itself (curl, picture), set Longest side to “as it is”."] : []),
    ...(later ? [`These are the first ${steps.length} of ${steps.length + later} steps, up to the one that is shown.`] : []),
  ].join(" ");
  return codeCard.show({ write: (language) => languages[language](), hint, picture: takes(source) });
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
    picker.names = { directml: [...catalogue.directml.keys()].sort(), onnx: [...catalogue.onnx.keys()].sort() };
    $("#level").append(...featureLevels().map((level) => element("option", { value: level }, level)));
    const names = [...new Set(devices.filter(({ reason }) => !reason).map(({ name }) => name))];
    $("#backend").append(...names.map((name) => element("option", {}, name)));
  } catch (error) {
    if (error.status === 401) return askForKey(error.message);
    return showErrors([error.message]);
  }
  picker.list("");
  await useSample("photo");
  await useOperator(picker.chosen());
}

const picker = new OperatorPicker(useOperator);
const modelCard = new ModelCard({ source: () => state.source, save, announce, unauthorized: askForKey });

function listen() {
  for (const button of document.querySelectorAll("[data-sample]")) button.addEventListener("click", () => useSample(button.dataset.sample));
  $("#file").addEventListener("change", ({ target }) => target.files[0] && openFile(target.files[0]));
  $("#type").append(...Object.keys(DATA_TYPES).filter(isPictureType).map((type) => element("option", {}, type)));
  $("#type").addEventListener("change", makeTensor);
  $("#longest").addEventListener("change", () => state.source?.file && openFile(state.source.file));
  for (const id of ["#level", "#backend"]) $(id).addEventListener("change", changed);
  $("#controls").addEventListener("submit", (event) => { event.preventDefault(); update(true); });
  $("#range").addEventListener("change", showOutput);
  for (const name of ["input", "output"]) $(`#${name} .plane input`).addEventListener("input", showOutput);
  $("#taps-axis").addEventListener("change", () => showTaps(round?.signal));
  $("#zoom-in").addEventListener("click", () => view.set({ zoom: view.zoom * 2 }));
  $("#zoom-out").addEventListener("click", () => view.set({ zoom: view.zoom / 2 }));
  $("#zoom-fit").addEventListener("click", () => view.set({ zoom: 1, x: 0.5, y: 0.5 }));
  view.add({ draw: () => {
    $("#zoom").textContent = view.zoom > 1 ? `${Number(view.zoom.toPrecision(3))} ×` : "fit";
    for (const canvas of document.querySelectorAll(".viewers canvas")) canvas.classList.toggle("zoomed", view.zoom > 1);
  } });
  $("#input .save").addEventListener("click", () => state.call && save(bodyOf(state.tensors, state.call), fileNames(state.call, 1).input));
  $("#output .save").addEventListener("click", () => save(state.answer.bytes, fileNames(state.call, 1).output));
  $("#step-add").addEventListener("click", () => state.step && addStep());
  $("#chain-save").addEventListener("click", saveChain);
  $("#chain-file").addEventListener("change", ({ target }) => { if (target.files[0]) openChain(target.files[0]); target.value = ""; });
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

listen();
start();
