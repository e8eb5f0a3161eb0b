package payload

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/volume"
)

// canary is in every value. No error may show it.
const canary = leak.Value

func ref(kind volume.Kind, name string) volume.Ref {
	return volume.Ref{Kind: kind, Namespace: "ns", Name: name}
}

func object(kind volume.Kind, name string, keys ...string) *volume.Object {
	o := &volume.Object{
		Ref:     ref(kind, name),
		Version: volume.Version{UID: "u", ResourceVersion: "1"},
		Data:    map[string][]byte{},
	}
	for _, key := range keys {
		o.Data[key] = []byte(name + " " + key + " " + canary)
	}
	return o
}

func objects(list ...*volume.Object) Objects {
	m := Objects{}
	for _, o := range list {
		m[o.Ref] = o
	}
	return m
}

// source returns a source for an object. Each item has the form key:path or key:path:mode.
func source(i int, kind volume.Kind, name string, items ...string) volume.Source {
	s := volume.Source{
		Projection: &volume.Projection{Ref: ref(kind, name)},
		Field:      fmt.Sprintf("sources[%d].%s%s", i, strings.ToLower(string(kind[:1])), kind[1:]),
	}
	for _, item := range items {
		parts := strings.Split(item, ":")
		it := volume.Item{Key: parts[0], Path: parts[1]}
		if len(parts) == 3 {
			mode, err := volume.ParseMode(parts[2])
			if err != nil {
				panic(err)
			}
			it.Mode = &mode
		}
		s.Projection.Items = append(s.Projection.Items, it)
	}
	return s
}

func optional(s volume.Source) volume.Source {
	s.Projection.Optional = true
	return s
}

func own(s volume.Source) volume.Source {
	mode := fs.FileMode(0o440)
	s.Projection.DefaultMode = &mode
	return s
}

func spec(sources ...volume.Source) *volume.Spec {
	return &volume.Spec{Sources: sources}
}

// show returns a file as path=value/mode, without the canary.
func show(tree *volume.Payload) []string {
	files := []string{}
	for _, f := range tree.Files {
		files = append(files, fmt.Sprintf("%s=%s/%04o", f.Path, strings.TrimSuffix(string(f.Data), " "+canary), uint32(f.Mode)))
	}
	return files
}

func TestRenderFiles(t *testing.T) {
	const cm, secret = volume.ConfigMap, volume.Secret
	with := func(mode fs.FileMode, s *volume.Spec) *volume.Spec {
		s.DefaultMode = &mode
		return s
	}
	for _, c := range []struct {
		name    string
		spec    *volume.Spec
		objects Objects
		want    []string
	}{
		{"files are sorted by path as bytes", spec(source(0, cm, "a", "x:d/z", "x:d.x", "x:d-x")), objects(object(cm, "a", "x")), []string{"d-x=a x/0644", "d.x=a x/0644", "d/z=a x/0644"}},
		{
			"each of the pod's own volumes has its default mode", spec(own(source(0, cm, "a", "x:x:0755", "y:y")), source(1, secret, "a")), objects(object(cm, "a", "x", "y"), object(secret, "a", "z")),
			[]string{"x=a x/0755", "y=a y/0440", "z=a z/0644"},
		},
		{
			"the default mode beats that of the pod's own volume", with(0o400, spec(own(source(0, cm, "a")), own(source(1, cm, "a", "x:d/x:0755")))), objects(object(cm, "a", "x")),
			[]string{"d/x=a x/0755", "x=a x/0400"},
		},
		{"a nil object counts as missing", spec(optional(source(0, cm, "a"))), Objects{{Kind: cm, Namespace: "ns", Name: "a"}: nil}, []string{}},
		{"objects that nobody asks for are left out", spec(source(0, cm, "a")), objects(object(cm, "a", "x"), object(secret, "a", "y"), object(cm, "b", "z")), []string{"x=a x/0644"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tree := must.Get(Render(c.spec, c.objects, Options{}))(t)
			expect.Equal(t, "files", show(tree.Payload), c.want)
			expect.Equal(t, "directories", fmt.Sprint(tree.DirMode, tree.UID, tree.GID), fmt.Sprint(fs.FileMode(0o755), 0, 0))
		})
	}
}

func TestRenderMissing(t *testing.T) {
	const cm, secret = volume.ConfigMap, volume.Secret
	type lacking struct {
		name    string
		spec    *volume.Spec
		objects Objects
		want    string
		missing []Missing
	}
	row := func(name string, spec *volume.Spec, objects Objects, want string, missing ...Missing) lacking {
		return lacking{name, spec, objects, want, missing}
	}
	for _, c := range []lacking{
		row("ConfigMap", spec(source(0, cm, "a")), nil, `sources[0].configMap: ConfigMap "ns/a" not found`,
			Missing{Ref: ref(cm, "a"), Field: "sources[0].configMap"}),
		row("Secret with items", spec(source(0, secret, "a", "x:x", "y:y")), nil, `sources[0].secret: Secret "ns/a" not found`,
			Missing{Ref: ref(secret, "a"), Field: "sources[0].secret"}),
		row("key of a ConfigMap", spec(source(0, cm, "a", "x:x", "none:p")), objects(object(cm, "a", "x")),
			`sources[0].configMap: ConfigMap "ns/a": configmap references non-existent config key: none (it has x)`,
			Missing{Ref: ref(cm, "a"), Key: "none", Field: "sources[0].configMap", Has: "x"}),
		row("key of a Secret", spec(source(0, secret, "a", "none:p")), objects(object(secret, "a", "f", "e", "d", "c", "b", "a")),
			`sources[0].secret: Secret "ns/a": references non-existent secret key: none (it has a, b, c, d, e)`,
			Missing{Ref: ref(secret, "a"), Key: "none", Field: "sources[0].secret", Has: "a, b, c, d, e"}),
		row("another kind, name or namespace is not it", spec(source(0, cm, "a")),
			Objects{
				{Kind: secret, Namespace: "ns", Name: "a"}: object(secret, "a", "x"),
				{Kind: cm, Namespace: "other", Name: "a"}:  object(cm, "a", "x"),
				{Kind: cm, Namespace: "ns", Name: "b"}:     object(cm, "b", "x"),
			},
			`sources[0].configMap: ConfigMap "ns/a" not found`),
		row("all of it at once, in the order of the spec",
			spec(source(0, cm, "a"), source(1, secret, "b", "x:x", "n1:n1", "n2:n2"), optional(source(2, cm, "c")), optional(source(3, secret, "b", "n3:n3")), source(4, cm, "d", "n4:n4")),
			objects(object(secret, "b", "x"), object(cm, "d")),
			`sources[0].configMap: ConfigMap "ns/a" not found`+
				`; sources[1].secret: Secret "ns/b": references non-existent secret key: n1 (it has x)`+
				`; sources[1].secret: Secret "ns/b": references non-existent secret key: n2 (it has x)`+
				`; sources[4].configMap: ConfigMap "ns/d": configmap references non-existent config key: n4`),
		row("what is missing comes before a conflict", spec(source(0, cm, "a", "x:k/x"), source(1, cm, "b"), source(2, cm, "c")),
			objects(object(cm, "a", "x"), object(cm, "b", "k")), `sources[2].configMap: ConfigMap "ns/c" not found`),
	} {
		t.Run(c.name, func(t *testing.T) {
			tree, err := Render(c.spec, c.objects, Options{})
			var missing *MissingError
			if tree != nil || !errors.As(err, &missing) {
				t.Fatalf("got %v, %v, want a *MissingError", tree, err)
			}
			must.Do(t, leak.Check("the error", err.Error()))
			if got := err.Error(); got != c.want || c.missing != nil && !slices.Equal(missing.Missing, c.missing) {
				t.Errorf("\ngot  %s: %+v\nwant %s: %+v", got, missing.Missing, c.want, c.missing)
			}
		})
	}
}

// The error counts everything that is missing, names a part of it, and its text stays readable.
func TestRenderManyMissing(t *testing.T) {
	for n, end := range map[int]string{maxMissing: "key: y", maxMissing + 1: "; and 1 more", 3000: fmt.Sprintf("; and %d more", 3000-maxMissing)} {
		s, other := source(0, volume.Secret, "a"), source(1, volume.Secret, "b", "x:x", "y:y")
		for i := range n - 2 {
			key := fmt.Sprintf("k%d", i)
			s.Projection.Items = append(s.Projection.Items, volume.Item{Key: key, Path: key})
		}
		_, err := Render(spec(s, other), objects(object(volume.Secret, "a"), object(volume.Secret, "b")), Options{})
		var missing *MissingError
		if !errors.As(err, &missing) || missing.Count != n || len(missing.Missing) != maxMissing {
			t.Fatalf("got %v, want a *MissingError of %d", err, n)
		}
		if text := err.Error(); strings.Count(text, "non-existent") != maxMissing || !strings.HasSuffix(text, end) {
			t.Errorf("%d missing: want %d named, and the end %q in %s", n, maxMissing, end, text)
		}
	}
}

// Keys of the greatest length make no long error: each text names a part of the missing key, and of the keys that there are.
func TestRenderMissingLongKeys(t *testing.T) {
	long := func(first string) string { return first + strings.Repeat("k", 252) }
	short := func(first string) string { return first + strings.Repeat("k", 60) + "..." }
	const bound = 4096
	s := source(0, volume.ConfigMap, "a")
	var keys, has []string
	for i := range 7 {
		s.Projection.Items = append(s.Projection.Items, volume.Item{Key: long(fmt.Sprint(i)), Path: fmt.Sprint(i)})
		keys = append(keys, long(fmt.Sprint(i) + "-")[:253])
	}
	for i := range 5 {
		has = append(has, short(fmt.Sprint(i) + "-")[:61]+"...")
	}
	_, err := Render(spec(s), objects(object(volume.ConfigMap, "a", keys...)), Options{})
	if err == nil || len(err.Error()) > bound {
		t.Fatalf("got %v, want at most %d bytes", err, bound)
	}
	want := "references non-existent config key: " + short("0") + " (it has " + strings.Join(has, ", ") + "); "
	if !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s in it", err, want)
	}
}

// TestShort: a text that an error shows whole has at most 64 bytes.
func TestShort(t *testing.T) {
	long := strings.Repeat("k", 65)
	expect.Equal(t, "a key of 64 bytes", shortKey(long[1:]), long[1:])
	expect.Equal(t, "a key of 65 bytes", shortKey(long), long[:61]+"...")
	expect.Equal(t, "a path of 64 bytes", short(long[1:]), long[1:])
	expect.Equal(t, "a path of 65 bytes", short(long), long[1:]+"...")
}

func TestRenderConflicts(t *testing.T) {
	const cm = volume.ConfigMap
	conflict := func(p, file string) string {
		return fmt.Sprintf("path %q can't be shown: %q is a file of the same volume; map one of the two keys to another path", p, file)
	}
	a, b := object(cm, "a", "x"), object(cm, "b", "conf", "conf.d")
	for _, c := range []struct {
		name string
		spec *volume.Spec
		want string
	}{
		{"an item, then a key where it needs a directory", spec(source(0, cm, "a", "x:conf/x"), source(1, cm, "b")), conflict("conf/x", "conf")},
		{"a key, then an item that needs a directory there", spec(source(0, cm, "b"), source(1, cm, "a", "x:conf/x")), conflict("conf/x", "conf")},
		{"a deep path", spec(source(0, cm, "b"), source(1, cm, "a", "x:conf/d/e/x")), conflict("conf/d/e/x", "conf")},
		{"a file that does not sort just before", spec(source(0, cm, "b"), source(1, cm, "a", "x:conf.d/x", "x:conf/x")), conflict("conf.d/x", "conf.d")},
	} {
		if tree, err := Render(c.spec, objects(a, b), Options{}); tree != nil || err == nil || err.Error() != c.want || errors.As(err, new(*MissingError)) {
			t.Errorf("%s: got %v, a %T: %v\nwant %s", c.name, tree, err, err, c.want)
		}
	}
	// Paths with the same start but different elements don't conflict.
	tree := must.Get(Render(spec(source(0, cm, "b"), source(1, cm, "a", "x:confx/x", "x:con/f")), objects(a, b), Options{}))(t)
	expect.Equal(t, "files", show(tree.Payload), []string{"con/f=a x/0644", "conf=b conf/0644", "conf.d=b conf.d/0644", "confx/x=a x/0644"})
}

// Each file names the objects of which it is made.
func TestRenderNamesObjects(t *testing.T) {
	const cm, secret = volume.ConfigMap, volume.Secret
	db, ca, own, absent := ref(secret, "db"), ref(cm, "ca"), ref(cm, "own"), ref(cm, "absent")
	key := func(r volume.Ref, key string) *volume.Reference {
		return &volume.Reference{Ref: r, Key: key, Optional: true}
	}
	mixed := volume.Source{Path: "mixed.env", Env: &volume.Env{
		From: []volume.EnvFrom{{Ref: db}, {Ref: absent, Optional: true}, {Ref: own}},
		Vars: []volume.EnvVar{{Name: "A", Key: key(ca, "x")}, {Name: "B", Key: key(ca, "none")}, {Name: "A", Value: "other"}, {Name: "C", Key: key(db, "y")}},
	}}
	plain := volume.Source{Path: "plain.env", Env: &volume.Env{From: []volume.EnvFrom{{Ref: own}}}}
	s := spec(source(0, secret, "db", "x:db/x", "y:p"), source(1, cm, "own", "x:p", "y:own"), source(2, cm, "ca"),
		mixed, plain)
	want := map[string][]volume.Ref{
		"db/x": {db}, "p": {own}, "own": {own}, "x": {ca}, "mixed.env": {ca, own, db}, "plain.env": {own}, // the later source shows p
	}
	opts := Options{}
	render := func() map[string][]volume.Ref {
		t.Helper()
		shown := must.Get(Render(s, objects(object(secret, "db", "x", "y"), object(cm, "ca", "x"), object(cm, "own", "x", "y")), opts))(t)
		got := map[string][]volume.Ref{}
		for _, f := range shown.Files {
			got[f.Path] = f.Refs
		}
		return got
	}
	expect.Equal(t, "objects of each file", render(), want)
	opts.Refused = map[volume.Ref]bool{db: true}
	want = map[string][]volume.Ref{"p": {own}, "own": {own}, "x": {ca}, "mixed.env": {ca, own}, "plain.env": {own}}
	expect.Equal(t, "objects of each file without those that are refused", render(), want)
}
