#!/usr/bin/env bash
# usage: format.sh SOURCE_DIR
# Checks that C sources are formatted as .clang-format says. Exit 77: skipped.
set -eu
cd "$1"
major=$(clang-format --version 2>/dev/null | sed -n 's/.*version \([0-9]*\).*/\1/p')
if [ "$major" != 14 ]; then
    echo "skipped: needs clang-format 14 (found: ${major:-none}); other versions format differently"
    exit 77
fi
{
    git ls-files -z --cached --others --exclude-standard -- '*.c' '*.h' '*.cu' '*.cuh' 2>/dev/null ||
        find . -path ./build -prune -o \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) -print0
} | while IFS= read -r -d '' f; do
    [ ! -f "$f" ] || printf '%s\0' "$f"
done | xargs -0 -P 2 -n 16 clang-format --dry-run --Werror
