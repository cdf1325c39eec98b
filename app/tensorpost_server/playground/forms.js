/** Forms: a control for each field that the catalogue has, and sliders for the operators that are tried first. */

/** An element with attributes and children; `on…` attributes are listeners. */
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/** Text whose parts between backticks are code, as nodes. */
export const withCode = (text) => text.split("`").map((part, index) => (index % 2 ? element("code", {}, part) : part));

let ids = 0;

/** A label above a control; `value` is an element that shows a slider's number. */
function labelled(text, control, value) {
  control.id ||= `control-${++ids}`;
  return element("div", { class: "field" }, element("label", { for: control.id }, text, ...(value ? [value] : [])), control);
}

export function select(choices, chosen, onchange) {
  const made = element("select", { onchange: () => onchange(made.value) });
  for (const choice of choices) {
    const [value, text] = Array.isArray(choice) ? choice : [choice, choice];
    made.append(element("option", { value, selected: value === chosen }, text));
  }
  return made;
}

/** One control for each field, bound to `texts`; `changed` is called after every input. */
export function renderFields(root, fields, texts, changed) {
  root.replaceChildren(...fields.map((field) => fieldControl(field, texts, changed)));
}

function fieldControl(field, texts, changed) {
  const set = (text) => {
    texts[field.key] = text;
    changed(field.key);
  };
  let control;
  if (field.kind === "choice") {
    const left = field.required ? [] : [["", field.default === undefined ? "left out" : `default (${field.default})`]];
    control = select([...left, ...field.choices], texts[field.key] ?? "", set);
  } else {
    const examples = { numbers: "1, 1, 2, 2", json: "JSON", number: "0" };
    const placeholder = field.default !== undefined ? `default: ${field.default}` : field.required ? examples[field.kind] ?? "" : "left out";
    control = element("input", { type: "text", value: texts[field.key] ?? "", placeholder, spellcheck: "false", autocapitalize: "off",
      inputmode: field.kind === "number" ? "decimal" : null, oninput: () => set(control.value) });
  }
  control.dataset.field = field.path;
  const made = labelled(field.label, control);
  const error = element("p", { class: "error", id: `${control.id}-error` });
  control.setAttribute("aria-describedby", error.id);
  made.append(error);
  return made;
}

/** Puts each violation at the field that it names; the others are in the verdict. */
export function markViolations(root, violations) {
  for (const control of root.querySelectorAll("[data-field]")) {
    const own = violations.filter(({ path }) => new RegExp(`\\.${control.dataset.field}\\b`).test(path));
    control.setAttribute("aria-invalid", String(own.length > 0));
    control.closest(".field").querySelector(".error").textContent = own.map(({ message }) => message).join("; ");
  }
}

/** Draws a form anew without taking the focus away from the control that is used. */
export function keepFocus(root, redraw) {
  const controls = () => [...root.querySelectorAll("input, select")];
  const index = controls().indexOf(document.activeElement);
  const caret = index >= 0 && document.activeElement.type === "text" ? document.activeElement.selectionStart : null;
  redraw();
  if (index < 0) return;
  const again = controls()[index];
  again?.focus();
  if (caret !== null && again?.type === "text") again.setSelectionRange(caret, caret);
}

// ---- sliders ---------------------------------------------------------------------------------------------------------

const numbers = (text) => text.split(/[\s,]+/).filter(Boolean).map(Number);

/** A slider for one entry of a list, counted from its end. */
function entrySlider(label, { texts, changed }, keyed, { min, max, step, suffix = "", neutral = 1 }) {
  const read = () => numbers(texts[keyed[0].key] ?? "").at(keyed[0].axis) ?? neutral;
  const shown = element("output", {}, `${read()}${suffix}`);
  const control = element("input", { type: "range", min, max, step, value: read(), oninput: () => {
    for (const { key, axis } of keyed) {
      const all = numbers(texts[key] ?? "");
      all[all.length + axis] = Number(control.value);
      texts[key] = all.join(", ");
    }
    shown.textContent = `${control.value}${suffix}`;
    control.setAttribute("aria-valuetext", `${control.value}${suffix}`);
    changed(keyed[0].key);
  } });
  control.dataset.slider = label;
  return labelled(label, control, shown);
}

const ALIGNMENTS = {
  centres: { text: "pixel centres", LINEAR: [0.5, -0.5], NEAREST_NEIGHBOR: [0, -0.5] },
  corners: { text: "first pixels", LINEAR: [0, 0], NEAREST_NEIGHBOR: [0, 0] },
};

/** The controls of an operator that is tried first; null for all others. @param {object} form {texts, changed, rank, redraw} */
export function simpleControls(operator, form) {
  return { "directml:tile": tileControls, "directml:resample2": resampleControls, "onnx:Resize": resizeControls }[operator.id]?.(form) ?? null;
}

function tileControls(form) {
  const options = { min: 1, max: 8, step: 1, suffix: " ×" };
  return [
    ...(form.rank > 1 ? [entrySlider("Copies down", form, [{ key: "repeats", axis: -2 }], options)] : []),
    entrySlider("Copies across", form, [{ key: "repeats", axis: -1 }], options),
  ];
}

let linked = true;

function scaleSliders(form) {
  const options = { min: 0.25, max: 6, step: 0.05, suffix: " ×" };
  if (form.rank < 2) return [entrySlider("Width", form, [{ key: "scales", axis: -1 }], options)];
  const box = element("input", { type: "checkbox", checked: linked, onchange: () => { linked = box.checked; form.redraw(); } });
  const both = element("label", { class: "check" }, box, "Height and width alike");
  if (linked) return [entrySlider("Scale", form, [{ key: "scales", axis: -1 }, { key: "scales", axis: -2 }], options), both];
  return [
    entrySlider("Height", form, [{ key: "scales", axis: -2 }], options),
    entrySlider("Width", form, [{ key: "scales", axis: -1 }], options),
    both,
  ];
}

function resampleControls(form) {
  const { texts, rank } = form, last = (key) => numbers(texts[key] ?? "").at(-1);
  const mode = texts.interpolation_mode;
  const alignment = Object.keys(ALIGNMENTS).find((name) => {
    const [input, output] = ALIGNMENTS[name][mode];
    return last("input_pixel_offsets") === input && last("output_pixel_offsets") === output;
  });
  const align = (name, interpolation) => {
    const offsets = ALIGNMENTS[name]?.[interpolation];
    for (const [index, key] of ["input_pixel_offsets", "output_pixel_offsets"].entries()) {
      const all = numbers(texts[key] ?? "");
      if (offsets) texts[key] = all.map((value, axis) => (axis >= rank - 2 ? offsets[index] : value)).join(", ");
    }
    if (interpolation === "NEAREST_NEIGHBOR" && name === "centres") texts.rounding_direction = "DECREASING";
    form.redraw();
    form.changed("input_pixel_offsets");
  };
  const both = (key) => [{ key, axis: -1 }, ...(rank > 1 ? [{ key, axis: -2 }] : [])];
  const offset = { min: -1, max: 1, step: 0.05, neutral: 0 };
  const controls = [
    labelled("Interpolation", select([["LINEAR", "linear"], ["NEAREST_NEIGHBOR", "nearest"]], mode, (chosen) => {
      texts.interpolation_mode = chosen;
      align(alignment, chosen);
    })),
    ...scaleSliders(form),
    labelled("Aligned at", select([...Object.entries(ALIGNMENTS).map(([name, { text }]) => [name, text]), ["", "offsets of your own"]], alignment ?? "", (chosen) => align(chosen, mode))),
    entrySlider("Input pixel offset", form, both("input_pixel_offsets"), offset),
    entrySlider("Output pixel offset", form, both("output_pixel_offsets"), offset),
  ];
  if (mode === "NEAREST_NEIGHBOR") {
    controls.push(labelled("Rounding", select([["DECREASING", "down"], ["INCREASING", "up"]], texts.rounding_direction, (chosen) => {
      texts.rounding_direction = chosen;
      form.changed("rounding_direction");
    })));
  }
  return controls;
}

function resizeControls(form) {
  const { texts, operator } = form;
  const choice = (key, label, only = () => true) => {
    const field = operator.fields.find((each) => each.key === key);
    if (!field || !only(texts.mode || "nearest")) return [];
    return [labelled(label, select(field.choices.map((name) => [name, name.replaceAll("_", " ")]), texts[key] || String(field.default), (chosen) => {
      texts[key] = chosen;
      if (key === "mode") form.redraw();
      form.changed(key);
    }))];
  };
  return [
    ...choice("mode", "Mode"),
    ...scaleSliders(form),
    ...choice("coordinate_transformation_mode", "Coordinates"),
    ...choice("nearest_mode", "Rounding", (mode) => mode === "nearest"),
    ...choice("antialias", "Antialias (0 no, 1 yes)", (mode) => mode !== "nearest"),
  ];
}

// ---- input tensors ---------------------------------------------------------------------------------------------------

/** Controls for an input beside the first: the same tensor, typed values, a file, or nothing. */
export function inputControls(input, state, changed, readTensor, types) {
  const details = element("div", { class: "field" });
  const choices = [["same", "the input tensor"], ["typed", "typed values"], ["file", "an npy file"], ...(input.optional ? [["none", "left out"]] : [])];
  const show = () => {
    details.replaceChildren();
    if (state.from === "typed") {
      const text = (key, label) => {
        const control = element("input", { type: "text", value: state[key], oninput: () => { state[key] = control.value; changed(); } });
        return labelled(label, control);
      };
      details.append(
        labelled("Type", select(types, state.type, (chosen) => { state.type = chosen; changed(); })),
        text("shape", "Shape"),
        text("values", "Values, or one for all"),
      );
    }
    if (state.from === "file") {
      const control = element("input", { type: "file", accept: ".npy", onchange: async () => {
        if (control.files[0]) state.tensor = await readTensor(control.files[0]);
        changed();
      } });
      details.append(labelled("File", control));
    }
  };
  show();
  const source = select(choices, state.from, (chosen) => { state.from = chosen; show(); changed(); });
  return element("div", { class: "tensor" }, labelled(input.field, source), details);
}
