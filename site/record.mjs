// Records a command as an animated SVG: node record.mjs FILE COMMAND [ARGUMENT...]
// Each line appears at the moment when the command printed it, but pauses are cut to two seconds. Readers who prefer less motion see all
// lines at once. It fails if the command fails, and then writes nothing.
import { spawn } from 'node:child_process'
import fs from 'node:fs'
import readline from 'node:readline'

const longestPause = 2
const lineHeight = 19
const charWidth = 8.1

const [file, command, ...args] = process.argv.slice(2)
if (!command) {
  console.error('usage: node record.mjs FILE COMMAND [ARGUMENT...]')
  process.exit(2)
}

const lines = [{ text: `$ ${[command, ...args].join(' ')}`, at: 0 }]
let shown = 0.5
let last = performance.now()
const child = spawn(command, args, { stdio: ['ignore', 'pipe', 'inherit'] })
for await (const text of readline.createInterface({ input: child.stdout })) {
  const now = performance.now()
  shown += Math.min((now - last) / 1000, longestPause)
  last = now
  lines.push({ text, at: shown })
}
const status = child.exitCode ?? (await new Promise((resolve) => child.on('exit', resolve)))
if (status !== 0) {
  console.error(`${command} exited with status ${status}`)
  process.exit(1)
}

const escape = (text) => text.replace(/[&<>]/g, (c) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;' })[c])
const width = Math.ceil(Math.max(...lines.map((line) => line.text.length)) * charWidth) + 32
const height = lines.length * lineHeight + 32
const text = lines.map(
  (line, i) =>
    `<text x="16" y="${(i + 1) * lineHeight + 10}" style="animation-delay:${line.at.toFixed(2)}s" xml:space="preserve">${escape(line.text)}</text>`,
)
fs.writeFileSync(
  file,
  `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" role="img">
<title>${escape(lines[0].text)}</title>
<style>
rect { fill: #1e1e1e }
text { fill: #e6e6e6; font: 13.5px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; opacity: 0; animation: show 0.01s forwards }
@keyframes show { to { opacity: 1 } }
@media (prefers-reduced-motion: reduce) { text { animation-delay: 0s !important } }
</style>
<rect width="100%" height="100%" rx="6"/>
${text.join('\n')}
</svg>
`,
)
