#!/usr/bin/env bash
# usage: headers.sh SOURCE_DIR CC [CFLAG...]
# Compiles every header outside tests and engine/cuda alone, as C17 and as C++17 (syntax only).
set -eu
root=$1 cc=$2
shift 2
cd "$root"

list() {
    if ! git ls-files --cached --others --exclude-standard -- '*.h' 2>/dev/null; then
        find . -path ./build -prune -o -name '*.h' -printf '%P\n'
    fi | grep -vE '^(engine/cuda|tests)/' | sort
}

failed=0
check() { # LANGUAGE FLAG...
    local language=$1
    shift
    # -include turns each header into the whole of an empty file, as a first include would be.
    list | xargs -P 2 -I {} sh -c '
        h=$1; shift
        [ ! -f "$h" ] || "$@" -include "$h" /dev/null ||
            { echo "$h does not compile alone ('"$language"')"; exit 1; }' sh {} \
        "$cc" -fsyntax-only -I . "$@" -x "$language" || failed=1
}

n=$(list | wc -l)
[ "$n" -gt 0 ] || { echo "no headers found"; exit 1; }
check c -std=c17 -D_POSIX_C_SOURCE=200809L -Wall -Wextra -Wpedantic -Werror "$@"
languages="as C and as C++"
if echo 'int x;' | "$cc" -fsyntax-only -x c++ - 2>/dev/null; then
    check c++ -std=c++17 -Wall -Wextra -Werror "$@"
else
    languages="as C; no C++ compiler here (install g++ to check C++ too)"
fi
[ "$failed" = 1 ] || echo "$n headers compile alone $languages"
exit "$failed"
