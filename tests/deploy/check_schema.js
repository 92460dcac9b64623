// Checks Kubernetes objects in YAML against the published schemas: required fields, types and enums
// (kubernetes-models), and unknown fields, such as a typo (its TypeScript types).
// usage: NODE_PATH=DIR/node_modules node check_schema.js FILE...
'use strict';
const fs = require('fs'), os = require('os'), path = require('path'), url = require('url');
const yaml = require('js-yaml'), ts = require('typescript');
const modules = process.env.NODE_PATH;
const scratch = fs.mkdtempSync(path.join(os.tmpdir(), 'schema.'));
fs.symlinkSync(path.resolve(modules), path.join(scratch, 'node_modules'));

function moduleOf(object) {
  const place = object.apiVersion.startsWith('monitoring.coreos.com/')
    ? '@kubernetes-models/prometheus-operator' : 'kubernetes-models';
  return `${place}/${object.apiVersion}/${object.kind}`;
}
async function faultsOf(object, n) {
  const name = moduleOf(object), faults = [], file = path.join(scratch, `${n}.ts`);
  try { // by its file: import() knows no NODE_PATH
    const types = await import(url.pathToFileURL(path.resolve(modules, `${name}.js`)));
    new types[object.kind](object).validate();
  } catch (error) {
    faults.push(error.message);
  }
  fs.writeFileSync(file, `import {I${object.kind} as T} from ${JSON.stringify(name)};\n` +
    `export const object: T = ${JSON.stringify(object)};\n`);
  const program = ts.createProgram([file], {
    noEmit: true, strict: true, skipLibCheck: true, types: [], target: ts.ScriptTarget.ES2020,
    moduleResolution: ts.ModuleResolutionKind.Node10, module: ts.ModuleKind.CommonJS });
  for (const found of ts.getPreEmitDiagnostics(program))
    faults.push(ts.flattenDiagnosticMessageText(found.messageText, ' ').slice(0, 400));
  return faults;
}
async function main() {
  let n = 0, n_faults = 0;
  for (const file of process.argv.slice(2))
    for (const object of yaml.loadAll(fs.readFileSync(file, 'utf8')).filter(Boolean))
      for (const fault of await faultsOf(object, n++)) {
        console.log(`${path.basename(file)}: ${object.kind} ${object.metadata.name}: ${fault}`);
        n_faults++;
      }
  fs.rmSync(scratch, { recursive: true });
  console.log(`${n} objects, ${n_faults} faults`);
  process.exitCode = n_faults || !n ? 1 : 0;
}
main();
