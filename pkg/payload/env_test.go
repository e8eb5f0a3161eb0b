package payload

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/refvol/refvol/pkg/volume"
)

func envSource(i int, path string, env volume.Env) volume.Source {
	return volume.Source{
		Field: fmt.Sprintf("sources[%d].env", i),
		Path:  path, Format: volume.EnvShell, Env: &env,
	}
}

func envFrom(kind volume.Kind, name, prefix string) volume.EnvFrom {
	return volume.EnvFrom{Prefix: prefix, Ref: volume.Ref{Kind: kind, Namespace: "ns", Name: name}, Field: "from " + name}
}

func plain(name, value string) volume.EnvVar { return volume.EnvVar{Name: name, Value: value} }

func fromKey(name string, kind volume.Kind, object, key string) volume.EnvVar {
	return volume.EnvVar{Name: name, Key: &volume.Reference{Ref: volume.Ref{Kind: kind, Namespace: "ns", Name: object}, Key: key, Field: "value of " + name}}
}

// values returns an object with these pairs of key and value.
func values(kind volume.Kind, name string, pairs ...string) *volume.Object {
	o := object(kind, name)
	for i := 0; i < len(pairs); i += 2 {
		o.Data[pairs[i]] = []byte(pairs[i+1])
	}
	return o
}

// readShell reads a simple form of a file that a shell can source.
func readShell(t *testing.T, data []byte) map[string]string {
	t.Helper()
	set := map[string]string{}
	for line := range strings.Lines(string(data)) {
		name, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		if !ok || len(value) < 2 || value[0] != '\'' || value[len(value)-1] != '\'' {
			t.Fatalf("line %q", line)
		}
		set[name] = value[1 : len(value)-1]
	}
	return set
}

func TestRenderEnvMissing(t *testing.T) {
	const cm, sec = volume.ConfigMap, volume.Secret
	env := volume.Env{
		From: []volume.EnvFrom{envFrom(cm, "none", ""), envFrom(sec, "s", "")},
		Vars: []volume.EnvVar{fromKey("A", cm, "c", "lost"), fromKey("B", sec, "s", "lost"), fromKey("C", sec, "gone", "k")},
	}
	state := objects(values(cm, "c", "k", canary), values(sec, "s", "k", canary))
	state[volume.Ref{Kind: cm, Namespace: "ns", Name: "c"}].BinaryData = map[string][]byte{"lost": []byte("binary data is no variable")}
	s := spec(envSource(0, "e", env))
	_, err := Render(s, state, Options{})
	want := `from none: ConfigMap "ns/none" not found` +
		`; value of A: couldn't find key lost in ConfigMap ns/c (it has k)` +
		`; value of B: couldn't find key lost in Secret ns/s (it has k)` +
		`; value of C: Secret "ns/gone" not found`
	var missing *MissingError
	if !errors.As(err, &missing) || err.Error() != want {
		t.Errorf("\ngot  %v\nwant %s", err, want)
	}
	// A deleted object's variables are left out. A missing key is an error.
	_, err = Render(s, state, Options{ForgiveDeleted: true})
	if want := `value of A: couldn't find key lost in ConfigMap ns/c (it has k); value of B: couldn't find key lost in Secret ns/s (it has k)`; err == nil || err.Error() != want {
		t.Errorf("\ngot  %v\nwant %s", err, want)
	}
}

// References that double a value with each line must not use unlimited memory.
func TestRenderEnvIsBounded(t *testing.T) {
	doubling := volume.Env{Vars: []volume.EnvVar{plain("A", strings.Repeat(canary, 100))}}
	for range 2000 {
		doubling.Vars = append(doubling.Vars, plain("A", "$(A)$(A)"))
	}
	repeated := volume.Env{Vars: []volume.EnvVar{plain("A", strings.Repeat("a", 1<<20))}}
	for range 2000 {
		repeated.Vars = append(repeated.Vars, plain("A", "$(A)"))
	}
	many := values(volume.ConfigMap, "many")
	for i := range 5 {
		many.Data[fmt.Sprint("K", i)] = make([]byte, 1<<20)
	}
	for name, env := range map[string]volume.Env{
		"references":              doubling,
		"the same over and over":  repeated,
		"references in one value": {Vars: []volume.EnvVar{plain("A", strings.Repeat("a", 1<<20)), plain("B", strings.Repeat("$(A)", 200))}},
		"keys":                    {From: []volume.EnvFrom{envFrom(volume.ConfigMap, "many", "")}},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := Render(spec(envSource(0, "e", env)), objects(many), Options{})
			runtime.ReadMemStats(&after)
			var tooLarge *TooLargeError
			if want := "sources[0].env: Too long: "; !errors.As(err, &tooLarge) || !strings.HasPrefix(err.Error(), want) {
				t.Fatalf("got %.200v, want %s", err, want)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 64<<20 {
				t.Errorf("took %d MiB", n>>20)
			}
		})
	}
}

// A file may have just MaxEnvBytes, from references and from keys, and nothing is skipped. A later variable that needs no room still takes effect.
func TestRenderEnvIsFull(t *testing.T) {
	room := MaxEnvBytes - len("A") - variableBytes
	full := values(volume.ConfigMap, "c", "A", strings.Repeat("a", room))
	two := volume.Env{From: []volume.EnvFrom{envFrom(volume.ConfigMap, "c", ""), envFrom(volume.ConfigMap, "d", "")}}
	_, err := Render(spec(envSource(0, "e", two)), objects(full, values(volume.ConfigMap, "d", "B", "")), Options{})
	if tooLarge := new(TooLargeError); !errors.As(err, &tooLarge) {
		t.Errorf("with a variable more: %v", err)
	}
	unknown := volume.Env{Vars: []volume.EnvVar{plain("A", strings.Repeat("a", room)), {Name: "A", Unknown: true}}}
	if got, err := Render(spec(envSource(0, "e", unknown)), nil, Options{}); err != nil || len(got.Files[0].Data) > 0 {
		t.Errorf("a value that is unknown in the end is in the file: %v, %v", got, err)
	}
	for more := range 2 {
		text := strings.Repeat("a", room+more)
		for name, env := range map[string]volume.Env{
			"a value": {Vars: []volume.EnvVar{plain("A", text)}},
			"a key":   {From: []volume.EnvFrom{envFrom(volume.ConfigMap, "c", "")}},
		} {
			got, err := Render(spec(envSource(0, "e", env)), objects(values(volume.ConfigMap, "c", "A", text)), Options{})
			var tooLarge *TooLargeError
			if more > 0 && !errors.As(err, &tooLarge) || more == 0 && (err != nil || len(got.Skipped) > 0 || len(got.Files[0].Data) < room) {
				t.Errorf("%s with %d more: %v", name, more, err)
			}
		}
	}
}

// A variable that refers to an unknown variable is unknown too.
func TestRenderEnvDependents(t *testing.T) {
	env := volume.Env{Vars: []volume.EnvVar{
		{Name: "CPUS", Unknown: true},
		plain("OPTS", "-j$(CPUS)"), plain("ALL", "make $(OPTS)"), plain("ESCAPED", "$$(CPUS)"),
		plain("CPUS2", "$(CPUS)"), plain("CPUS2", "fixed"), plain("USES", "$(CPUS2)"),
	}}
	got, err := Render(spec(envSource(0, "e", env)), nil, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if text := string(got.Files[0].Data); text != "CPUS2='fixed'\nESCAPED='$(CPUS)'\nUSES='fixed'\n" {
		t.Errorf("the file is %q", text)
	}
	if text := fmt.Sprint(got.Skipped); text != "[{e shell [] [ALL OPTS]}]" {
		t.Errorf("skipped %s", text)
	}
}

// TestExpansionIsLinear: text that starts a reference and is none is scanned once. With a scan of the rest for each character, these cases
// take minutes.
func TestExpansionIsLinear(t *testing.T) {
	const length = 3 << 19
	for pattern, want := range map[string]string{"$": "$", "$a": "$a", "$(": "$(", "$$": "$", "$()": "$()"} {
		n := length / len(pattern)
		began := time.Now()
		got, err := Render(spec(envSource(0, "e", volume.Env{Vars: []volume.EnvVar{plain("V", strings.Repeat(pattern, n))}})), objects(), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if pattern == "$" {
			n /= 2 // a pair stands for one
		}
		if value := readShell(t, got.Files[0].Data)["V"]; value != strings.Repeat(want, n) {
			t.Errorf("%q: %d bytes, want %d times %q", pattern, len(value), n, want)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("%q: %s", pattern, took)
		}
	}
}

// TestRenderEnvCanaries: a variable of a canary wins over those without it, wherever they are, and later references see it. Without the canary
// the others count.
func TestRenderEnvCanaries(t *testing.T) {
	canaries, key := envFrom(volume.ConfigMap, "canary", ""), fromKey("KEY", volume.ConfigMap, "canary", "K")
	canaries.Canary, canaries.Optional, key.Key.Canary, key.Key.Optional = true, true, true, true
	env := volume.Env{
		From: []volume.EnvFrom{canaries, envFrom(volume.ConfigMap, "app", "")},
		Vars: []volume.EnvVar{key, fromKey("KEY", volume.ConfigMap, "app", "K"), plain("URL", "http://$(HOST)"), {Name: "HOST", Unknown: true}, plain("PLAIN", "p")},
	}
	app := values(volume.ConfigMap, "app", "HOST", "a", "K", "1", "PLAIN", "x")
	for want, shown := range map[string]Objects{
		"HOST='c'\nK='2'\nKEY='2'\nPLAIN='c'\nURL='http://c'\n": objects(app, values(volume.ConfigMap, "canary", "HOST", "c", "K", "2", "PLAIN", "c")),
		"K='1'\nKEY='1'\nPLAIN='p'\nURL='http://a'\n":           objects(app),
	} {
		got, err := Render(spec(envSource(0, "e", env)), shown, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if text := string(got.Files[0].Data); text != want {
			t.Errorf("the file is %q, want %q", text, want)
		}
	}
}
