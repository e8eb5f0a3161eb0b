#!/bin/bash
# Fails if git tracks a program that was built (ELF, PE or Mach-O), or a file of more than 512 KiB, in the working
# directory or below. It names each of them.
set -euo pipefail

limit=$((512 * 1024))
export LC_ALL=C # so that a character is a byte

if [ ! -e .git ]; then
  echo "SKIPPED: this is no git checkout: nothing is tracked"
  exit
fi

# is_program FILE: tells by how the file begins. read leaves out bytes that are zero, which none of the forms begins with.
is_program() {
  local magic=
  IFS= read -r -N 4 magic <"$1" || true
  case $magic in
  $'\x7fELF') ;;
  $'\xfe\xed\xfa\xce' | $'\xfe\xed\xfa\xcf' | $'\xce\xfa\xed\xfe' | $'\xcf\xfa\xed\xfe') ;; # Mach-O
  $'\xca\xfe\xba\xbe' | $'\xca\xfe\xba\xbf') ;;                                             # Mach-O for several processors
  MZ*) head -c 64 "$1" | grep -qaP '\x00' ;;                                                # PE; no text has such a byte
  *) return 1 ;;
  esac
}

list=$(mktemp)
trap 'rm -f "$list"' EXIT
git ls-files -z >"$list"
files=() status=0
while IFS= read -r -d '' file; do
  if [ ! -f "$file" ] || [ -L "$file" ]; then continue; fi # git tracks no content of it, or it is deleted
  files+=("$file")
  if is_program "$file"; then
    echo "$file is a program: remove it from git" >&2
    status=1
  fi
done <"$list"
if [ ${#files[@]} -gt 0 ]; then printf '%s\0' "${files[@]}"; fi | xargs -0 --no-run-if-empty stat --printf '%s %n\0' -- >"$list"
while read -r -d '' size file; do
  if [ "$size" -gt "$limit" ]; then
    echo "$file has $size bytes, more than $limit" >&2
    status=1
  fi
done <"$list"
exit "$status"
