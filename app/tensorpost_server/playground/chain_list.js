/** The list of a chain's steps: which one is shown, what each makes, what is wrong with it, and buttons to change the order. */

import { element } from "./forms.js";
import { titleOf } from "./steps.js";
import { shapeText } from "./tensor.js";

export class ChainList {
  /**
   * @param {HTMLElement} root an ordered list
   * @param {{show: Function, move: Function, remove: Function}} listeners called with a step, and by `move` with -1 or 1
   */
  constructor(root, listeners) {
    this.root = root;
    this.listeners = listeners;
  }

  /**
   * Draws the steps anew; the focus stays at the same button of the same step.
   *
   * @param {object[]} steps
   * @param {object} shown the step on the screen; one that is in no chain yet stands after them
   * @param {Map<object, {made: string, errors: string[]}>} facts by step: what it makes, and what is wrong with it
   */
  draw(steps, shown, facts) {
    const focused = this.root.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    const rows = steps.map((step, index) => this.#row(steps, step, index, step === shown, facts.get(step)));
    if (steps.length && !steps.includes(shown)) rows.push(nextRow(shown, facts.get(shown)));
    this.root.replaceChildren(...rows);
    if (focused) this.focus(...focused.split(":"));
  }

  /** Puts the focus on a button of a step; on the step itself where the button cannot be pressed any more. */
  focus(name, action) {
    const button = (which) => this.root.querySelector(`[data-key="${CSS.escape(name)}:${which}"]`);
    (button(action)?.disabled ? button("show") : button(action))?.focus();
  }

  #row(steps, step, index, shown, { made = "", errors = [] } = {}) {
    const title = titleOf(step, index), { show, move, remove } = this.listeners, error = `step-error-${index}`;
    const tool = (action, sign, label, disabled, onclick) =>
      element("button", { type: "button", class: "quiet", "data-key": `${step.name}:${action}`, "aria-label": `${label}: ${title}`, disabled, onclick }, sign);
    return element("li", { class: errors.length ? "step wrong" : "step" },
      element("button", { type: "button", class: "show", "data-key": `${step.name}:show`, "aria-pressed": String(shown),
        "aria-describedby": errors.length ? error : null, onclick: () => show(step) },
      element("span", {}, `${index + 1}. ${step.operator.name}`), element("small", {}, made)),
      tool("up", "↑", "Move up", index === 0, () => move(step, -1)),
      tool("down", "↓", "Move down", index === steps.length - 1, () => move(step, 1)),
      tool("remove", "×", "Remove", false, () => remove(step)),
      ...(errors.length ? [element("p", { class: "error", id: error }, errors.join("; "))] : []));
  }
}

/** The operator on the screen that is no step yet; what is shown is the chain with it. */
const nextRow = (step, { made = "", errors = [] } = {}) => element("li", { class: errors.length ? "step next wrong" : "step next" },
  element("p", {}, element("span", {}, `Next: ${step.operator.name}, not added yet`), element("small", {}, made)),
  ...(errors.length ? [element("p", { class: "error" }, errors.join("; "))] : []));

/** What a step makes, in a few words. */
export const madeText = (verdict) =>
  (verdict?.valid ? verdict.outputs.map(({ dtype, shape }) => `${dtype} ${shapeText(shape)}`).join(", ") : "");
