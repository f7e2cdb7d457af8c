// The controls, as the body of a request. They are kept in this tab alone, the API key too.

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];
const NAMES = ["draft", "verify", "tree"];
const STORE = "draftproof";

export class Settings {
  constructor(form) {
    this.form = form;
    const kept = JSON.parse(sessionStorage.getItem(STORE) ?? "{}");
    for (const [name, value] of Object.entries(kept)) {
      const field = form.elements[name];
      if (field?.type === "checkbox") field.checked = value;
      else if (field) field.value = value;
    }
    form.addEventListener("input", () => this.keep());
    form.addEventListener("submit", (event) => event.preventDefault());
  }

  keep() {
    const named = [...this.form.elements].filter((field) => field.name);
    const values = named.map((field) => [field.name, field.type === "checkbox" ? field.checked : field.value]);
    sessionStorage.setItem(STORE, JSON.stringify(Object.fromEntries(values)));
  }

  get(name) {
    const field = this.form.elements[name];
    return field.type === "checkbox" ? field.checked : field.value.trim();
  }

  get key() {
    return this.get("key");
  }

  /** The first field with a value that cannot be sent, as one line; empty if all are fine. */
  get problem() {
    const wrong = [...this.form.elements].find((field) => field.name && !field.checkValidity());
    return wrong ? `${wrong.closest("label").firstChild.textContent}: ${wrong.validationMessage}` : "";
  }

  /** The body of a request; fields left empty are the server's to choose. */
  body(turns, speculate = this.get("speculate")) {
    const system = this.get("system");
    const messages = [...(system ? [{ role: "system", content: system }] : []), ...turns];
    const given = (names) => names.filter((name) => this.get(name) !== "");
    const numbers = given(NUMBERS).map((name) => [name, Number(this.get(name))]);
    const names = given(NAMES).map((name) => [name, this.get(name)]);
    return {
      ...(this.get("model") ? { model: this.get("model") } : {}),
      messages,
      stream_options: { include_usage: true },
      ...Object.fromEntries(numbers),
      draftproof: { details: true, speculate, ...(speculate ? Object.fromEntries(names) : {}) },
    };
  }

  offer(models) {
    const select = this.form.elements.model;
    select.replaceChildren(...models.map((id) => new Option(id, id)));
    select.closest("label").hidden = models.length < 2;
  }
}
