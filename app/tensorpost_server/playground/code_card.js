/** The card with the call as text to copy, a tab for each language. */

import { element } from "./forms.js";

const $ = (selector) => document.querySelector(selector);

export class CodeCard {
  #language;
  #languages;
  #write = null;

  /**
   * @param {Record<string, string>} languages what the tabs say, by id; the first is open
   * @param {(text: string) => void} announce
   */
  constructor(languages, announce) {
    this.#languages = languages;
    this.#language = Object.keys(languages)[0];
    this.announce = announce;
    $(".tabs").replaceChildren(...Object.entries(languages).map(([id, text]) => element("button", { type: "button", role: "tab", id: `tab-${id}`, "aria-controls": "code",
      "aria-selected": String(id === this.#language), hidden: id === "picture", tabindex: id === this.#language ? "0" : "-1", onclick: () => this.choose(id) }, text)));
    $(".tabs").addEventListener("keydown", (event) => this.#walk(event));
    $("#copy").addEventListener("click", () => this.#copy());
  }

  /**
   * Shows a call.
   *
   * @param {{write: (language: string) => string | Promise<string>, hint: (language: string) => string, picture: boolean} | null} call
   *   null where there is none; `picture` is whether the call can be made with the picture's own bytes
   */
  async show(call) {
    this.#write = call;
    $("#copy").disabled = !call;
    $("#code-hint").textContent = "";
    if (!call) return void ($("#code code").textContent = "This call is not valid yet.");
    $("#tab-picture").hidden = !call.picture;
    if (this.#language === "picture" && !call.picture) return this.choose("curl");
    const language = this.#language, text = await call.write(language);
    if (this.#write !== call || this.#language !== language) return; // another was asked for meanwhile
    $("#code code").textContent = text;
    $("#code-hint").textContent = call.hint(language);
  }

  async choose(id) {
    this.#language = id;
    for (const tab of document.querySelectorAll("[role=tab]")) {
      const chosen = tab.id === `tab-${id}`;
      tab.setAttribute("aria-selected", String(chosen));
      tab.tabIndex = chosen ? 0 : -1;
    }
    $("#code").setAttribute("aria-labelledby", `tab-${id}`);
    await this.show(this.#write);
  }

  #walk(event) {
    const ids = Object.keys(this.#languages).filter((id) => !$(`#tab-${id}`).hidden), step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const next = step ? ids[(ids.indexOf(this.#language) + step + ids.length) % ids.length] : { Home: ids[0], End: ids.at(-1) }[event.key];
    if (!next) return;
    event.preventDefault();
    this.choose(next).then(() => $(`#tab-${next}`).focus());
  }

  async #copy() {
    const text = $("#code code").textContent;
    try {
      await navigator.clipboard.writeText(text);
    } catch { // no permission, or the page did not come over https or from this machine
      getSelection().selectAllChildren($("#code code"));
      document.execCommand("copy");
    }
    $("#copy").textContent = "Copied";
    this.announce("Copied");
    setTimeout(() => ($("#copy").textContent = "Copy"), 1500);
  }
}
