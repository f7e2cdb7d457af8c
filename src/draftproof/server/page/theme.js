// The theme that was chosen here before, applied before the page is first painted.
const chosen = localStorage.getItem("theme");
if (chosen) document.documentElement.dataset.theme = chosen;
