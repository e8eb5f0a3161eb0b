// Records a command as an animated SVG: node record.mjs FILE COMMAND [ARGUMENT...]
// Each line appears at the moment when the command printed it, but pauses are cut to two seconds. The picture shows the last 28 lines, as a
// terminal does. Readers who prefer less motion see the end at once. It fails if the command fails, and then writes nothing.
import { spawn } from 'node:child_process'
import fs from 'node:fs'
import readline from 'node:readline'

const longestPause = 2
const lineHeight = 19
const longestView = 28
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
const view = Math.min(lines.length, longestView)
const height = view * lineHeight + 32
const end = lines.at(-1).at
// At each line that doesn't fit any more, the text moves up. Lines of one moment move it once.
const up = (count) => `transform: translateY(${-count * lineHeight}px)`
const moves = new Map(lines.slice(view).map((line, i) => [`${((line.at / end) * 100).toFixed(2)}%`, up(i + 1)]))
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
g { animation: scroll ${end.toFixed(2)}s step-end forwards }
@keyframes scroll { ${[...moves].map(([at, move]) => `${at} { ${move} }`).join(' ')} }
@media (prefers-reduced-motion: reduce) { text { animation-delay: 0s !important } g { animation: none; ${up(lines.length - view)} } }
</style>
<rect width="100%" height="100%" rx="6"/>
<g>
${text.join('\n')}
</g>
</svg>
`,
)
