// Package envfile tests env files with the shells and the parsers that read them.
package envfile

import (
	"bytes"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/dotenv"
	"github.com/joho/godotenv"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/internal/dice"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/envfile"
	"github.com/refvol/refvol/pkg/volume"
)

// shells are the shells that can source a file, each with its arguments.
func shells() map[string][]string {
	return map[string][]string{
		"dash":       {"dash"},
		"bash":       {"bash"},
		"bash posix": {"bash", "--posix"},
	}
}

// source runs a script in a shell that starts with an empty environment, with content
// as its file $0, and returns what it prints. The shell must exist.
func source(t *testing.T, shell []string, content []byte, script string) []byte {
	t.Helper()
	path, err := exec.LookPath(shell[0])
	must.Do(t, err)
	file := filepath.Join(t.TempDir(), "env")
	must.Do(t, os.WriteFile(file, content, 0o600))
	cmd := exec.Command(path, slices.Concat(shell[1:], []string{"-c", "set -a; . \"$0\"; " + script, file})...)
	// A value that runs a command leaves its traces here.
	cmd.Env, cmd.Dir = []string{}, filepath.Dir(file)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%q: %v: %.1000s", shell, err, stderr.String())
	}
	if entries, err := os.ReadDir(cmd.Dir); err != nil || len(entries) != 1 {
		t.Errorf("%q: the directory holds %v, %v; want nothing but the file", shell, entries, err)
	}
	return out
}

// environment reads what env -0 prints.
func environment(out []byte) map[string]string {
	variables := map[string]string{}
	for entry := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		name, value, _ := strings.Cut(entry, "=")
		variables[name] = value
	}
	// What shells set themselves.
	for _, name := range []string{"PWD", "OLDPWD", "SHLVL", "_"} {
		delete(variables, name)
	}
	return variables
}

// printEnvironment is the script that environment reads. PATH may be set by the file.
func printEnvironment(t *testing.T) string {
	t.Helper()
	env := must.Get(exec.LookPath("env"))(t)
	return "exec " + env + " -0"
}

func compare(t *testing.T, got map[string]string, want []envfile.Variable) {
	t.Helper()
	for _, v := range want {
		if value, ok := got[v.Name]; !ok || value != v.Value {
			t.Errorf("%s = %q, %t; want %q", v.Name, value, ok, v.Value)
		}
		delete(got, v.Name)
	}
	for name, value := range got {
		t.Errorf("%s = %q was set by another variable", name, value)
	}
}

// TestShellsRead takes every character, and random values.
func TestShellsRead(t *testing.T) {
	var characters []envfile.Variable
	for r := rune(1); r < 0x3000; r++ {
		if r < 0x100 || r >= 0x2000 && r < 0x2100 {
			for _, value := range []string{string(r), "a" + string(r), string(r) + "'", "'" + string(r) + "\\"} {
				characters = append(characters, envfile.Variable{Name: numbered(len(characters)), Value: value})
			}
		}
	}
	t.Run("characters", func(t *testing.T) { shellsRead(t, characters) })
	dice.Each(t, 5, func(t *testing.T, random *rand.Rand) { shellsRead(t, randomVariables(random, 1000)) })
}

func shellsRead(t *testing.T, variables []envfile.Variable) {
	t.Helper()
	data, skipped := envfile.Encode(volume.EnvShell, variables)
	if skipped != nil {
		t.Fatalf("%q were skipped", skipped)
	}
	for name, shell := range shells() {
		t.Run(name, func(t *testing.T) { compare(t, environment(source(t, shell, data, printEnvironment(t))), variables) })
	}
}

// TestShellsReadLongValue takes a value that is too long for the environment of a
// program, so the shell itself has to tell it.
func TestShellsReadLongValue(t *testing.T) {
	value := strings.Repeat("it's \"$x\"\n\\", 1<<20/11)
	data, _ := envfile.Encode(volume.EnvShell, []envfile.Variable{{Name: "LONG", Value: value}, {Name: "LAST", Value: "x"}})
	for name, shell := range shells() {
		if got := string(source(t, shell, data, `printf %s "$LONG$LAST"`)); got != value+"x" {
			t.Errorf("%s: %d bytes differ from the %d expected", name, len(got), len(value)+1)
		}
	}
}

// TestShellsReadEveryVariable sets each variable that means something to a shell, one
// at a time, to a value that it would not expect; the long form has several.
func TestShellsReadEveryVariable(t *testing.T) {
	names := strings.Fields(string(source(t, []string{"bash"}, nil, "compgen -v; set -o posix; compgen -v")))
	// Those that exist only at times.
	names = append(names, strings.Fields(`
		BASH_COMPAT BASH_ENV BASH_REMATCH BASH_XTRACEFD CDPATH CHILD_MAX COLUMNS COMPREPLY COMP_CWORD COMP_LINE
		COMP_WORDS COPROC ENV EXECIGNORE FCEDIT FIGNORE FUNCNAME FUNCNEST GLOBIGNORE GLOBSORT HISTCONTROL HISTFILE
		HISTFILESIZE HISTIGNORE HISTSIZE HISTTIMEFORMAT HOME HOSTFILE IGNOREEOF INPUTRC LANG LC_ALL LC_COLLATE
		LC_CTYPE LC_MESSAGES LC_NUMERIC LC_TIME LINES MAIL MAILCHECK MAILPATH MAPFILE OLDPWD OPTARG PROMPT_COMMAND
		PROMPT_DIRTRIM PS0 PS1 PS2 PS3 READLINE_LINE REPLY TERM TIMEFORMAT TMOUT TMPDIR TZ USER
		auto_resume case do done esac fi for function histchars if in select then time until while`)...)
	slices.Sort(names)
	script := printEnvironment(t)
	for _, name := range slices.Compact(names) {
		t.Run(name, func(t *testing.T) {
			for _, value := range harness.Scaled([]string{"x[$(echo >trace)]"}, []string{"", "1", "a b", "x[$(echo >trace)]"}) {
				variables := []envfile.Variable{{Name: "FIRST", Value: "1"}, {Name: name, Value: value}, {Name: "LAST", Value: "it's"}}
				data, skipped := envfile.Encode(volume.EnvShell, variables)
				want := slices.DeleteFunc(variables, func(v envfile.Variable) bool { return slices.Contains(skipped, v.Name) })
				for _, shell := range shells() {
					got := environment(source(t, shell, data, script))
					// Which the shell's own value was taken out with.
					if name == "PWD" || name == "OLDPWD" {
						got[name] = value
					}
					compare(t, got, want)
				}
			}
		})
	}
}

// What a shell does with a variable by itself, without anybody's asking for it, must not
// be for a value to choose.
func TestSourcingDoesNoHarm(t *testing.T) {
	dir := t.TempDir()
	victim, trace := filepath.Join(dir, "victim"), filepath.Join(dir, "trace")
	data, skipped := envfile.Encode(volume.EnvShell, []envfile.Variable{
		{Name: "HISTFILE", Value: victim}, {Name: "HISTFILESIZE", Value: "0"}, {Name: "PS4", Value: "$(echo >" + trace + ")+ "},
	})
	if want := []string{"HISTFILESIZE", "PS4"}; !slices.Equal(skipped, want) {
		t.Errorf("skipped %q, want %q", skipped, want)
	}
	for name, shell := range shells() {
		must.Do(t, os.WriteFile(victim, []byte("a\nb\n"), 0o600))
		source(t, shell, data, "set -x; true")
		if text, err := os.ReadFile(victim); err != nil || string(text) != "a\nb\n" {
			t.Errorf("%s: the history file is %q, %v", name, text, err)
		}
		if _, err := os.Stat(trace); err == nil {
			t.Errorf("%s: a command in a value has run", name)
		}
	}
}

// Values that a shell takes for commands would run as whoever runs the tests.
func TestMain(m *testing.M) {
	os.Exit(harness.Main(m, nil))
}

// read encodes variables, and compares what each parser makes of them. It returns the
// skipped names.
func read(t *testing.T, variables []envfile.Variable) []string {
	t.Helper()
	data, skipped := envfile.Encode(volume.EnvDotenv, variables)
	want := slices.DeleteFunc(slices.Clone(variables), func(v envfile.Variable) bool { return slices.Contains(skipped, v.Name) })
	for name, parse := range map[string]func(string) (map[string]string, error){
		"godotenv":   godotenv.Unmarshal,
		"compose-go": func(s string) (map[string]string, error) { return dotenv.Parse(strings.NewReader(s)) },
	} {
		got, err := parse(string(data))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		compare(t, got, want)
	}
	return skipped
}

func TestParsersRead(t *testing.T) {
	for class, value := range map[string]string{
		"empty": "", "plain": "a-b.c/d:e=f@g", "spaces": "  a  ", "hash": "a#b", "space and hash": "a #b",
		"dollar": "a$V0 5$", "braces": "${V0}", "dollars": "$$", "command": "$(id)", "backslash": `C:\dir`,
		"two backslashes": `\\host\x`, "backslash at the end": `a b\`, "single quote": "it's", "double quote": `"a"`,
		"backtick": "`id`", "both quotes": `it's "x"`, "both quotes and line": "it's\n\"x\"\n", "quote and dollar": `it's $5`,
		"line": "a\nV0=x\n", "PEM": "-----BEGIN-----\nMII=\n-----END-----\n", "JSON": "{\"a\": \"$b\\n\"\n}\n",
		"JSON with two backslashes": "{\"a\": \"\\\\n\"\n}\n", "DOS lines": "a\r\nb\r\n", "carriage return": "a\rb",
		"carriage return and quote": "\"a\"\rb", "tab": "\ta\t", "backslash n": `a\nb`, "unicode": "é✓😀",
		"line separators": "a\u0085b\u2028c\u2029d", "no-break spaces": "\u00a0a\ufeff", "control": "\x01\x1b\x7f",
		"export": "export V0=x", "long": strings.Repeat("it's $x\n", 1<<14),
	} {
		t.Run(class, func(t *testing.T) {
			skipped := read(t, []envfile.Variable{{Name: "V0", Value: "a'b"}, {Name: "V", Value: value}, {Name: "V1", Value: `c "d"`}})
			if skipped != nil {
				t.Errorf("%q were skipped", skipped)
			}
		})
	}
}

func TestParsersReadRandomValues(t *testing.T) {
	dice.Each(t, 3, func(t *testing.T, random *rand.Rand) {
		variables := randomVariables(random, 3000)
		for _, name := range read(t, variables) {
			i := slices.IndexFunc(variables, func(v envfile.Variable) bool { return v.Name == name })
			if value := variables[i].Value; !strings.HasSuffix(value, `\`) && !strings.HasSuffix(value, `"`) {
				t.Errorf("%q was skipped", value)
			}
		}
	})
}

// tokens are what values are made of: what some reader of some format takes for
// syntax, and a little that none does.
func tokens() []string {
	return []string{
		"'", `"`, "`", `\`, "$", "#", " ", "\n", "\r", "\t", "=", ":", ";", "&", "|", "!", "~", "*", "{", "}", "(", ")",
		"a", "n", "r", "0", "é", "😀", "\u0085", "\u00a0", "\u2028", "\ufeff", "\x01", "\x1b", "\x7f", "\v",
		"\nV1=x\n", "V0", "$V0", "${V0}", "${V0:-x}", "$(id)", "`id`", "export ", "''", `""`, `\'`, `\"`, `\\`, `\n`,
	}
}

func randomVariables(random *rand.Rand, n int) []envfile.Variable {
	tokens := tokens()
	variables := make([]envfile.Variable, n)
	for i := range variables {
		var value strings.Builder
		for range random.IntN(8) {
			value.WriteString(tokens[random.IntN(len(tokens))])
		}
		variables[i] = envfile.Variable{Name: numbered(i), Value: value.String()}
	}
	return variables
}

func numbered(i int) string { return "V" + strconv.Itoa(i) }
