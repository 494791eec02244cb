// Light or dark: as the person has chosen on any page, else as the system is.

function setTheme(dark) {
  document.documentElement.classList.toggle("dark", dark);
  localStorage.setItem("theme", dark ? "dark" : "light");
}

const chosen = localStorage.getItem("theme");
document.documentElement.classList.toggle("dark", chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
document.getElementById("theme").addEventListener("click", () =>
  setTheme(!document.documentElement.classList.contains("dark")));
