package payload

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/volume"
)

func envSource(i int, path string, env volume.Env) volume.Source {
	return volume.Source{Field: fmt.Sprintf("sources[%d].env", i), Path: path, Format: volume.EnvShell, Env: &env}
}

func envFrom(kind volume.Kind, name, prefix string) volume.EnvFrom {
	return volume.EnvFrom{Prefix: prefix, Ref: ref(kind, name), Field: "from " + name}
}

func plain(name, value string) volume.EnvVar { return volume.EnvVar{Name: name, Value: value} }

func fromKey(name string, kind volume.Kind, object, key string) volume.EnvVar {
	return volume.EnvVar{Name: name, Key: &volume.Reference{Ref: ref(kind, object), Key: key, Field: "value of " + name}}
}

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
	state[ref(cm, "c")].BinaryData = map[string][]byte{"lost": []byte("binary data is no variable")}
	s := spec(envSource(0, "e", env))
	_, err := Render(s, state, Options{})
	want := `from none: ConfigMap "ns/none" not found` +
		`; value of A: couldn't find key lost in ConfigMap ns/c (it has k)` +
		`; value of B: couldn't find key lost in Secret ns/s (it has k)` +
		`; value of C: Secret "ns/gone" not found`
	if !errors.As(err, new(*MissingError)) || err.Error() != want {
		t.Errorf("\ngot  %v\nwant %s", err, want)
	}
	// A deleted object's variables are left out. A missing key is an error.
	_, err = Render(s, state, Options{ForgiveDeleted: true})
	const lost = `value of A: couldn't find key lost in ConfigMap ns/c (it has k); value of B: couldn't find key lost in Secret ns/s (it has k)`
	expect.Equal(t, "with deleted objects", fmt.Sprint(err), lost)
}

// A file may have just MaxEnvBytes, from references and from keys, and nothing is skipped. A later variable that needs no room still takes effect.
func TestRenderEnvIsFull(t *testing.T) {
	room := MaxEnvBytes - len("A") - variableBytes
	full := values(volume.ConfigMap, "c", "A", strings.Repeat("a", room))
	two := volume.Env{From: []volume.EnvFrom{envFrom(volume.ConfigMap, "c", ""), envFrom(volume.ConfigMap, "d", "")}}
	_, err := Render(spec(envSource(0, "e", two)), objects(full, values(volume.ConfigMap, "d", "B", "")), Options{})
	if !errors.As(err, new(*TooLargeError)) {
		t.Errorf("with a variable more: %v", err)
	}
	unknown := volume.Env{Vars: []volume.EnvVar{plain("A", strings.Repeat("a", room)), {Name: "A", Unknown: true}}}
	empty := must.Get(Render(spec(envSource(0, "e", unknown)), nil, Options{}))(t)
	expect.Equal(t, "the file of a value that is unknown in the end", string(empty.Files[0].Data), "")
	for more := range 2 {
		text := strings.Repeat("a", room+more)
		for name, env := range map[string]volume.Env{
			"a value": {Vars: []volume.EnvVar{plain("A", text)}},
			"a key":   {From: []volume.EnvFrom{envFrom(volume.ConfigMap, "c", "")}},
		} {
			got, err := Render(spec(envSource(0, "e", env)), objects(values(volume.ConfigMap, "c", "A", text)), Options{})
			if more > 0 && !errors.As(err, new(*TooLargeError)) || more == 0 && (err != nil || len(got.Skipped) > 0 || len(got.Files[0].Data) < room) {
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
	got := must.Get(Render(spec(envSource(0, "e", env)), nil, Options{}))(t)
	expect.Equal(t, "the file", string(got.Files[0].Data), "CPUS2='fixed'\nESCAPED='$(CPUS)'\nUSES='fixed'\n")
	expect.Equal(t, "what is skipped", fmt.Sprint(got.Skipped), "[{e shell [] [ALL OPTS]}]")
}

// TestExpansionIsLinear: text that starts a reference and is none is scanned once. With a scan of the rest for each character, these cases
// take minutes. In a variable, a pair of dollars stands for one.
func TestExpansionIsLinear(t *testing.T) {
	for _, pattern := range []string{"$", "$(", "$(a", "$()", "$$("} {
		text := strings.Repeat(pattern, 3<<18/len(pattern))
		began := time.Now()
		got := must.Get(Render(spec(envSource(0, "e", volume.Env{Vars: []volume.EnvVar{plain("V", text)}})), objects(), Options{}))(t)
		if value := readShell(t, got.Files[0].Data)["V"]; value != strings.ReplaceAll(text, "$$", "$") {
			t.Errorf("%q: %d bytes became %d", pattern, len(text), len(value))
		}
		if file := expanded(t, text, variable{"A", "", "x"}); file != text {
			t.Errorf("%q: a text of %d bytes became %d", pattern, len(text), len(file))
		}
		expect.Between(t, fmt.Sprintf("the time for %q", pattern), time.Since(began), 0, 10*time.Second)
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
		got := must.Get(Render(spec(envSource(0, "e", env)), shown, Options{}))(t)
		expect.Equal(t, "the file", string(got.Files[0].Data), want)
	}
}

// maxHeap limits the memory of one render beside the objects.
const (
	maxHeap  = 64 << 20
	maxFiles = 8192
)

// allocated returns how many bytes do allocates. That is more than it ever uses at once, and doesn't depend on the garbage collector.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func numbered(name string, n, size int) *volume.Object {
	o := object(volume.ConfigMap, name)
	value := []byte(strings.Repeat("v", size))
	for i := range n {
		o.Data[strconv.FormatInt(int64(i), 36)] = value
	}
	return o
}

// Attributes that ask for the same thing many times are refused before it is created.
func TestRenderIsBounded(t *testing.T) {
	var same []volume.Source
	for i := range 2800 {
		same = append(same, source(i, volume.ConfigMap, "big"))
	}
	from := func(n int, prefix string) volume.Source {
		return envSource(0, "e", volume.Env{From: slices.Repeat([]volume.EnvFrom{envFrom(volume.ConfigMap, "big", prefix)}, n)})
	}
	references := strings.Repeat("$(E)", 128<<10) // half a mebibyte
	unused := volume.Env{Vars: []volume.EnvVar{{Name: "B", Value: strings.Repeat("x", 100<<10)}, {Name: "U", Unknown: true}}}
	empty := volume.Env{Vars: []volume.EnvVar{{Name: "E"}}}
	doubling, repeated := volume.Env{Vars: []volume.EnvVar{plain("A", strings.Repeat(canary, 100))}}, volume.Env{Vars: []volume.EnvVar{plain("A", strings.Repeat("a", 1<<20))}}
	for range 2000 {
		doubling.Vars = append(doubling.Vars, plain("A", "$(A)$(A)"))
		repeated.Vars = append(repeated.Vars, plain("A", "$(A)"))
	}
	inOneValue := volume.Env{Vars: []volume.EnvVar{plain("A", strings.Repeat("a", 1<<20)), plain("B", strings.Repeat("$(A)", 200))}}
	for i := range 100 {
		unused.Vars = append(unused.Vars, volume.EnvVar{Name: fmt.Sprint("V", i), Value: "$(B)$(U)"})
		empty.Vars = append(empty.Vars, volume.EnvVar{Name: fmt.Sprint("V", i), Value: references})
	}
	var texts []volume.Source
	for i := range 100 {
		texts = append(texts, volume.Source{Path: fmt.Sprint("t", i), Field: fmt.Sprintf("sources[%d].expand", i), Expand: &volume.Expand{
			Text: volume.Reference{Ref: ref(volume.ConfigMap, "big"), Key: "text", Field: "text"}, Env: volume.Env{Vars: []volume.EnvVar{{Name: "E"}}},
		}})
	}
	const tooLong = "sources[0].env: Too long: the joined and expanded files of a volume and the names and values of its variables may take 4194304 bytes together, with 64 for each variable, counted as often as it is set"
	type bounded struct {
		name    string
		objects Objects
		sources []volume.Source
		want    string
	}
	of := func(name string, object *volume.Object, sources ...volume.Source) bounded {
		return bounded{name, objects(object), sources, tooLong}
	}
	env := func(name string, env volume.Env) bounded {
		return of(name, numbered("big", 1, 1), envSource(0, "e", env))
	}
	expand := func(name, text string, variables ...variable) bounded {
		s, state := expanding(text, variables...)
		return bounded{"expanded: " + name, state, s.Sources, strings.Replace(tooLong, "env", "expand", 1)}
	}
	large, value := strings.Repeat("\x00", 1<<20), strings.Repeat("\x00", 1<<17)
	half := strings.Repeat("x", MaxEnvBytes/2-33) // of the room, with what a variable takes: it fits in once as a value, and once in the text
	for _, c := range []bounded{
		{
			"one object in many sources", objects(numbered("big", 3000, 1)), same,
			"sources[2].configMap: Too many: the volume may show 8192 keys, items and other files, each counted as often as it is named: one for each page of --max-volume-size",
		},
		of("a long prefix", numbered("big", 10000, 0), from(1, strings.Repeat("P", 60000))),
		of("the same variables many times", numbered("big", 10000, 0), from(2000, "")),
		of("large keys", numbered("big", 5, 1<<20), from(1, "")),
		env("values that are made and not used", unused),
		env("values that become empty", empty),
		env("references that double a value with each line", doubling),
		env("the same value over and over", repeated),
		env("references in one value", inOneValue),
		{
			"texts that become empty", objects(values(volume.ConfigMap, "big", "text", references)), texts,
			strings.Replace(tooLong, "sources[0].env", "sources[7].expand", 1),
		},
		expand("one value often", strings.Repeat("$(A)", 200_000), variable{"A", "", value}),
		expand("one value often, for JSON", strings.Repeat("$(A)", 200_000), variable{"A", "json", value}),
		expand("one value often, for a URL", strings.Repeat("$(A)", 200_000), variable{"A", "url", value}),
		expand("one large value for JSON", "$(A)", variable{"A", "json", large}),
		expand("one large value for a URL", "$(A)", variable{"A", "url", large}),
		expand("many values", "", variable{"A", "", large}, variable{"B", "", large}, variable{"C", "", large}, variable{"D", "", large}),
		expand("a byte too many", "$(A)", variable{"A", "", half + "x"}),
		expand("a byte too many for JSON", "$(A)", variable{"A", "json", half + "x"}),
		expand("a byte too many for a URL", "$(A)", variable{"A", "url", half + "x"}),
		expand("a byte too many around it", "y$(A)x", variable{"A", "", half}),
	} {
		t.Run(c.name, func(t *testing.T) {
			var err error
			n := allocated(func() { _, err = Render(spec(c.sources...), c.objects, Options{MaxFiles: maxFiles}) })
			if n > maxHeap { // with the race detector, appends take more
				t.Errorf("allocated %d MiB, more than %d", n>>20, maxHeap>>20)
			}
			if err == nil || err.Error() != c.want || !errors.As(err, new(*TooLargeError)) {
				t.Errorf("\ngot  a %T: %.300v\nwant %s", err, err, c.want)
			}
		})
	}
	if got := expanded(t, "$(A)", variable{"A", "", half}); got != half {
		t.Errorf("just what there is room for became %d bytes", len(got))
	}
}

// A volume may show just as many keys, items and other files as the limit says, in whatever order.
func TestRenderIsFull(t *testing.T) {
	const cm = volume.ConfigMap
	for name, sources := range map[string][]volume.Source{
		"keys":             {source(0, cm, "three")},
		"items":            {source(0, cm, "three", "0:a", "1:b", "0:c")},
		"the same path":    {source(0, cm, "three", "0:a", "1:b"), source(1, cm, "three", "2:a")},
		"env files":        {envSource(0, "a", volume.Env{}), envSource(1, "b", volume.Env{}), envSource(2, "c", volume.Env{})},
		"a versions file":  {source(0, cm, "three", "0:a", "1:b"), {Path: "v", Versions: true, Field: "sources[1].versions"}},
		"and another file": {joined("ConfigMap/three/0"), source(1, cm, "three", "0:a", "1:b")},
	} {
		for limit, fits := range map[int]bool{2: false, 3: true} {
			_, err := Render(spec(sources...), objects(numbered("three", 3, 1)), Options{MaxFiles: limit})
			if fits && err != nil || !fits && !errors.As(err, new(*TooLargeError)) {
				t.Errorf("%s: with a limit of %d: %v", name, limit, err)
			}
		}
	}
}
