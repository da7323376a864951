# Sourced by scripts/quickstart and scripts/test: the Debian 12 packages that Berth is built from.

# Compiler and build tools, then libraries: SQLite (the store), Lua (scenarios), jansson (JSON),
# zlib (compressed traces), PCRE2 and utf8proc (tokenizers, tables), LAPACK (quantisers).
build_packages=(
    gcc libc6-dev cmake ninja-build pkg-config
    libsqlite3-dev liblua5.4-dev libjansson-dev zlib1g-dev libpcre2-dev libutf8proc-dev
    liblapacke-dev libopenblas-dev
)
plot_packages=(gnuplot-nox)
# Criterion (unit tests), a C++ compiler (headers are checked as C++ too), the formatter.
test_packages=(libcriterion-dev g++ clang-format)

# install_packages NAME...: installs those that are missing, as root or through sudo. Asks nothing
# of the network when none is.
install_packages() {
    local missing=() name
    if ! command -v dpkg-query >/dev/null; then
        echo "No dpkg here: please see to it that the equivalents of these packages are installed:"
        echo "  $*"
        return 0
    fi
    for name in "$@"; do
        if [ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null)" != installed ]; then
            missing+=("$name")
        fi
    done
    [ "${#missing[@]}" -gt 0 ] || return 0
    local as_root=()
    if [ "$(id -u)" != 0 ]; then
        if ! command -v sudo >/dev/null; then
            echo "Missing packages, and neither root nor sudo to install them. As root, run:" >&2
            echo "  apt-get install --no-install-recommends ${missing[*]}" >&2
            return 4
        fi
        as_root=(sudo)
    fi
    echo "Installing: ${missing[*]}"
    # Another installation may hold the lock: wait for it.
    local wait=(-o DPkg::Lock::Timeout=300)
    "${as_root[@]}" apt-get "${wait[@]}" update -qq
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get "${wait[@]}" install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
}

# Objects of an earlier build are used again where ccache is installed.
if command -v ccache >/dev/null; then
    export CMAKE_C_COMPILER_LAUNCHER="${CMAKE_C_COMPILER_LAUNCHER:-ccache}"
fi
export CMAKE_GENERATOR=Ninja
