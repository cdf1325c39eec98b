/** The controls that choose an operator: the few that are tried first, and a list of all with a filter. */

import { element } from "./forms.js";

const $ = (selector) => document.querySelector(selector);

export class OperatorPicker {
  /** Names by dialect, set when the catalogue is there. @type {{directml: string[], onnx: string[]}} */
  names = { directml: [], onnx: [] };

  /** @param {(id: string) => void} choose called with an operator's id when another is chosen */
  constructor(choose) {
    for (const radio of document.querySelectorAll("[name=kind]")) radio.addEventListener("change", () => choose(this.chosen()));
    $("#filter").addEventListener("input", ({ target }) => {
      const before = $("#operator").value;
      this.list(target.value);
      if ($("#operator").value && $("#operator").value !== before) choose(this.chosen());
    });
    $("#operator").addEventListener("change", () => choose(this.chosen()));
  }

  /** The id of the operator that is chosen. */
  chosen() {
    const kind = $("[name=kind]:checked").value;
    $("#any").hidden = kind !== "any";
    return kind === "any" ? $("#operator").value : kind;
  }

  /** Shows which operator is in the form; a filter that hides it ends. */
  show(id) {
    if (this.chosen() === id) return;
    const radio = $(`[name=kind][value="${CSS.escape(id)}"]`) ?? $("[name=kind][value=any]");
    radio.checked = true;
    if (radio.value === "any") {
      $("#operator").value = id;
      if ($("#operator").value !== id) {
        $("#filter").value = "";
        this.list("");
        $("#operator").value = id;
      }
    }
    this.chosen();
  }

  list(filter) {
    const words = filter.toLowerCase().split(/\s+/);
    const matching = (names) => names.filter((name) => words.every((word) => name.toLowerCase().replaceAll("_", " ").includes(word.replaceAll("_", " "))));
    const before = $("#operator").value;
    const group = (label, dialect, names) => {
      const made = element("optgroup", { label });
      made.append(...matching(names).map((name) => element("option", { value: `${dialect}:${name}` }, name)));
      return made;
    };
    $("#operator").replaceChildren(group("DirectML", "directml", this.names.directml), group("ONNX", "onnx", this.names.onnx));
    $("#operator").value = before;
    if (!$("#operator").value) $("#operator").selectedIndex = 0;
  }
}
