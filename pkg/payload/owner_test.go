package payload

import (
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"strings"
	"testing"

	"github.com/refvol/refvol/internal/expect"
	"github.com/refvol/refvol/internal/leak"
	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/volume"
)

// A volume that names an owner or a group gets exactly its modes, with an fsGroup too. A group wins over the fsGroup. A file belongs to its
// item's user, or else to the user of all files, or else to that of the pod's own volume that names the object, as in the kubelet's volumes.
// A user does not make modes exact.
func TestRenderOwner(t *testing.T) {
	id := func(n int64) *int64 { return &n }
	const widened = 0o755 | fs.ModeSetgid
	for _, c := range []struct {
		name                                string
		uid, gid, fsGroup, ofItem, ofVolume *int64
		mode, dir                           fs.FileMode
		wantUID, wantGID                    int
		user                                *int64
	}{
		{"nobody", nil, nil, nil, nil, nil, 0o400, 0o755, 0, 0, nil},
		{"fsGroup", nil, nil, id(2000), nil, nil, 0o440, widened, 0, 2000, nil},
		{"uid", id(1000), nil, nil, nil, nil, 0o400, 0o755, 1000, 0, nil},
		{"uid with fsGroup", id(1000), nil, id(2000), nil, nil, 0o400, 0o755, 1000, 2000, nil},
		{"gid with fsGroup", nil, id(3000), id(2000), nil, nil, 0o400, 0o755, 0, 3000, nil},
		{"gid of root with fsGroup", nil, id(0), id(2000), nil, nil, 0o400, 0o755, 0, 0, nil},
		{"all", id(1000), id(3000), id(2000), nil, nil, 0o400, 0o755, 1000, 3000, nil},
		{"an item's user", nil, nil, id(2000), id(1), nil, 0o440, widened, 0, 2000, id(1)},
		{"an item's root", nil, nil, id(2000), id(0), id(3), 0o440, widened, 0, 2000, id(0)},
		{"an item's user beats that of all", id(2), nil, id(2000), id(1), id(3), 0o400, 0o755, 2, 2000, id(1)},
		{"all files' is the tree's", id(2), nil, id(2000), nil, id(3), 0o400, 0o755, 2, 2000, nil},
		{"the pod's own volume's", nil, nil, id(2000), nil, id(3), 0o440, widened, 0, 2000, id(3)},
	} {
		s := spec(source(0, volume.Secret, "a", "x:d/x"), source(1, volume.Secret, "b"))
		mode := fs.FileMode(0o400)
		s.DefaultMode, s.UID, s.GID = &mode, c.uid, c.gid
		s.Sources[0].Projection.Items[0].User = c.ofItem
		s.Sources[0].Projection.DefaultUser, s.Sources[1].Projection.DefaultUser = c.ofVolume, c.ofItem
		tree := must.Get(Render(s, objects(object(volume.Secret, "a", "x"), object(volume.Secret, "b", "y")), Options{FSGroup: c.fsGroup}))(t)
		if got := tree.Files[0]; got.Path != "d/x" || got.Mode != c.mode || !reflect.DeepEqual(got.User, c.user) {
			t.Errorf("%s: %s has user %v", c.name, got, got.User)
		}
		expect.Equal(t, c.name+": directories", fmt.Sprint(tree.DirMode, tree.UID, tree.GID), fmt.Sprint(c.dir, c.wantUID, c.wantGID))
		// Keys without items only have the volume's user.
		want := c.ofItem
		if c.uid != nil {
			want = nil
		}
		expect.Equal(t, c.name+": the user of the other file", tree.Files[1].User, want)
	}
}

func TestDirectories(t *testing.T) {
	with := func(strategy volume.WriteStrategy, s *volume.Spec, paths ...string) *volume.Spec {
		s.WriteStrategy = strategy
		for i, path := range paths {
			s.Directories = append(s.Directories, volume.Directory{Path: path, Field: fmt.Sprintf("directories[%d]", i)})
		}
		return s
	}
	conf := source(0, volume.ConfigMap, "m", "k:conf/k")
	whole := source(1, volume.Secret, "s")
	const fix = `; map the key to another path, or mount elsewhere`
	type directories struct {
		name string
		// want are those in the root, and those among files, or the refusal.
		want string
		spec *volume.Spec
		keys []string // of Secret s
	}
	row := func(name, want string, spec *volume.Spec, keys ...string) directories {
		return directories{name, want, spec, keys}
	}
	for _, test := range []directories{
		row("none", `[] []`, with(volume.WriteAtomic, spec(conf, whole)), "a"),
		row("in the root", `["a/b" "tls"] []`, with(volume.WriteAtomic, spec(conf, whole), "tls", "a/b"), "b"),
		row("among files", `["tls"] ["conf/x"]`, with(volume.WriteInPlace, spec(conf, whole), "tls", "conf/x"), "b"),
		row("among files that are not there yet", `[] ["conf/x"]`, with(volume.WriteInPlace, spec(optional(source(0, volume.ConfigMap, "m", "gone:conf/k"))), "conf/x")),
		row("a key at a directory", `directories[0]: the directory "tls" for a mount can't be beside the file "tls"`+fix,
			with(volume.WriteAtomic, spec(conf, whole), "tls"), "tls"),
		row("a key above a directory", `directories[1]: the directory "a/b/c" for a mount can't be beside the file "a"`+fix,
			with(volume.WriteAtomic, spec(whole), "x", "a/b/c"), "a"),
		row("a key above a directory in place", `directories[0]: the directory "a/b/c" for a mount can't be beside the file "a"`+fix,
			with(volume.WriteInPlace, spec(whole), "a/b/c"), "a"),
		row("a key above a directory among files that are not there yet", `directories[0]: the directory "conf/x" for a mount can't be beside the file "conf"`+fix,
			with(volume.WriteInPlace, spec(optional(source(0, volume.ConfigMap, "m", "gone:conf/k")), whole), "conf/x"), "conf"),
	} {
		got, err := Render(test.spec, objects(object(volume.ConfigMap, "m", "k"), object(volume.Secret, "s", test.keys...)), Options{})
		text := fmt.Sprint(err)
		if err == nil {
			text = fmt.Sprintf("%q %q", got.Directories, got.Inner)
		}
		if text != test.want || strings.Contains(text, leak.Value) {
			t.Errorf("%s: got  %s\nwant %s", test.name, text, test.want)
		}
	}
}

// What Names counts before the paths of whole objects are made is what the paths have.
func TestNames(t *testing.T) {
	app := values(volume.ConfigMap, "app", "a", "", "bcd", "")
	app.BinaryData = map[string][]byte{"e": nil}
	s := spec(source(0, volume.ConfigMap, "app"), source(1, volume.ConfigMap, "app").In(volume.Directory{Path: "some/dir"}),
		source(2, volume.ConfigMap, "app", "a:listed"), optional(source(3, volume.Secret, "db")).In(volume.Directory{Path: "other"}))
	want := volume.Names{Bytes: 2 * 5, Added: 3 * int64(len("some/dir/"))}
	expect.Equal(t, "names", Names(s, objects(app)), want)
}

// Files with too many directories are refused before more is done with them.
func TestTooManyDirectories(t *testing.T) {
	var sources []volume.Source
	for i := range 10 {
		sources = append(sources, source(i, volume.ConfigMap, "app", fmt.Sprintf("k:%d/a/b/f", i)))
	}
	shown := objects(object(volume.ConfigMap, "app", "k"))
	must.Get(Render(spec(sources...), shown, Options{MaxDirectories: 30}))(t)
	_, err := Render(spec(sources...), shown, Options{MaxDirectories: 29})
	if !errors.As(err, new(*TooLargeError)) || !strings.Contains(err.Error(), "more than the 29 directories") {
		t.Errorf("got %v", err)
	}
}

// joined returns a source of parts in the form kind/object/key, with a ? after an optional one.
func joined(parts ...string) volume.Source {
	source := volume.Source{Path: "d/ca.pem", Field: "sources[0].join"}
	for _, text := range parts {
		text, optional := strings.CutSuffix(text, "?")
		part := strings.Split(text, "/")
		source.Join = append(source.Join, volume.Reference{
			Ref: volume.Ref{Kind: volume.Kind(part[0]), Namespace: "ns", Name: part[1]}, Key: part[2], Optional: optional, Field: "part " + text,
		})
	}
	return source
}

func TestRenderJoin(t *testing.T) {
	state := objects(values(volume.ConfigMap, "c", "line", "one\n", "open", "two", "empty", ""), values(volume.Secret, "s", "k", "three\n\n"))
	state[ref(volume.ConfigMap, "c")].BinaryData = map[string][]byte{"raw": []byte("\xff")}
	for _, test := range []struct {
		parts []string
		want  string
		refs  int
	}{
		{[]string{"ConfigMap/c/line", "Secret/s/k", "ConfigMap/c/open"}, "one\nthree\n\ntwo\n", 2},
		{[]string{"ConfigMap/c/open", "ConfigMap/c/empty", "ConfigMap/c/line"}, "two\none\n", 1},
		{[]string{"ConfigMap/c/raw", "ConfigMap/c/open"}, "\xff\ntwo\n", 1},
		{[]string{"ConfigMap/none/k?", "Secret/s/none?", "ConfigMap/c/line"}, "one\n", 2},
		{[]string{"ConfigMap/none/k?"}, "", 0},
	} {
		t.Logf("%q", test.parts)
		file := must.Get(Render(spec(joined(test.parts...)), state, Options{}))(t).Files[0]
		if file.Path != "d/ca.pem" || string(file.Data) != test.want || len(file.Refs) != test.refs || file.Mode != volume.DefaultMode {
			t.Errorf("%q: got %q of %v, %s", test.parts, file.Data, file.Refs, file)
		}
	}
}

func TestRenderJoinRefuses(t *testing.T) {
	state := objects(values(volume.ConfigMap, "c", "k", "v"), values(volume.Secret, "large", "k", strings.Repeat("x", 1<<20)))
	_, err := Render(spec(joined("ConfigMap/none/k", "ConfigMap/c/none", "Secret/none/k")), state, Options{})
	want := `part ConfigMap/none/k: ConfigMap "ns/none" not found` +
		`; part ConfigMap/c/none: ConfigMap "ns/c": configmap references non-existent config key: none (it has k)` +
		`; part Secret/none/k: Secret "ns/none" not found`
	if !errors.As(err, new(*MissingError)) || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	_, err = Render(spec(joined("Secret/large/k", "Secret/large/k", "Secret/large/k", "Secret/large/k")), state, Options{})
	if !errors.As(err, new(*TooLargeError)) || !strings.HasPrefix(err.Error(), "sources[0].join: Too long: the joined and expanded files of a volume and ") {
		t.Errorf("got %.200v", err)
	}
	// An object that the pod may not read is left out.
	refused := map[volume.Ref]bool{{Kind: volume.Secret, Namespace: "ns", Name: "large"}: true}
	got, err := Render(spec(joined("Secret/large/k", "ConfigMap/c/k")), state, Options{Refused: refused})
	if err != nil || string(got.Files[0].Data) != "v\n" || len(got.Files[0].Refs) != 1 {
		t.Errorf("got %v, %v", got, err)
	}
}

// TestRenderVersions: the file names the shown objects and no value. Without a right to one of them it must be removed.
func TestRenderVersions(t *testing.T) {
	versions := volume.Source{Path: ".versions", Versions: true, Field: "sources[2].versions"}
	s := spec(source(0, volume.ConfigMap, "c"), optional(source(1, volume.Secret, "s")), versions)
	got := must.Get(Render(s, objects(values(volume.ConfigMap, "c", "k", canary)), Options{}))(t)
	const want = `{
  "objects": [
    {
      "kind": "ConfigMap",
      "namespace": "ns",
      "name": "c",
      "uid": "u",
      "resourceVersion": "1"
    }
  ]
}
`
	file := got.Files[0]
	if file.Path != ".versions" || string(file.Data) != want || len(file.Refs) != 1 {
		t.Errorf("got %s of %v", file.Data, file.Refs)
	}
	both := objects(values(volume.ConfigMap, "c", "k", canary), values(volume.Secret, "s", "l", canary))
	refused := map[volume.Ref]bool{{Kind: volume.ConfigMap, Namespace: "ns", Name: "c"}: true}
	got = must.Get(Render(s, both, Options{Refused: refused}))(t)
	if text := string(got.Files[0].Data); strings.Contains(text, "ConfigMap") || !strings.Contains(text, `"name": "s"`) {
		t.Errorf("without the ConfigMap: %s", text)
	}
}

// showHeld returns each file as path=kept or path=content, with the number of its objects. The versions file shows only resourceVersions.
func showHeld(files []volume.File) (all []string) {
	for i := range files {
		f, text := &files[i], "kept"
		switch {
		case f.Path == ".versions":
			var versions []string
			for line := range strings.Lines(string(f.Data)) {
				if _, version, found := strings.Cut(line, `"resourceVersion": `); found {
					versions = append(versions, strings.TrimSpace(version))
				}
			}
			text = strings.Join(versions, ",")
		case !f.Keep:
			text = strings.TrimSpace(string(f.Data))
		}
		all = append(all, fmt.Sprintf("%s=%s of %d", f.Path, text, len(f.Refs)))
	}
	return all
}

// TestRenderHeld: files of a held object stay as they are, also those that another object is part of. All other files are new.
func TestRenderHeld(t *testing.T) {
	both := envSource(2, "both.env", volume.Env{From: []volume.EnvFrom{envFrom(volume.ConfigMap, "held", ""), envFrom(volume.Secret, "free", "")}})
	own := envSource(3, "free.env", volume.Env{From: []volume.EnvFrom{envFrom(volume.Secret, "free", "")}})
	s := spec(source(0, volume.ConfigMap, "held"), source(1, volume.Secret, "free", "y:y"), both, own, joined("ConfigMap/held/x"),
		volume.Source{Path: ".versions", Versions: true, Field: "sources[5].versions"})
	held, free := s.Sources[0].Projection.Ref, s.Sources[1].Projection.Ref
	kept := func(path string, refs ...volume.Ref) volume.File {
		return volume.File{Path: path, Keep: true, Refs: refs}
	}
	shown := []volume.File{
		kept("both.env", held, free), kept("d/ca.pem", held), kept("free.env", free), kept("old", held), kept("x", held), kept("y", free),
	}
	newest := objects(values(volume.ConfigMap, "held", "x", "new", "z", "new"), values(volume.Secret, "free", "y", "2"))
	for name, test := range map[string]struct {
		held Held
		want []string
	}{
		"all its files": {
			Held{At: map[volume.Ref]volume.Version{held: {UID: "u", ResourceVersion: "0"}}, Files: shown},
			[]string{`.versions="0","1" of 2`, "both.env=kept of 2", "d/ca.pem=kept of 1", "free.env=y='2' of 1", "old=kept of 1", "x=kept of 1", "y=2 of 1"},
		},
		"the volume doesn't show it yet": {
			Held{At: map[volume.Ref]volume.Version{held: {}}, Files: []volume.File{kept("free.env", free), kept("y", free)}},
			[]string{`.versions="1" of 1`, "both.env=y='2' of 1", "d/ca.pem= of 0", "free.env=y='2' of 1", "y=2 of 1"},
		},
		"none is held": {
			Held{Files: shown},
			[]string{
				`.versions="1","1" of 2`, "both.env=x='new'\ny='2'\nz='new' of 2", "d/ca.pem=new of 1", "free.env=y='2' of 1",
				"x=new of 1", "y=2 of 1", "z=new of 1",
			},
		},
	} {
		t.Log(name)
		got := must.Get(Render(s, newest, Options{Held: test.held}))(t)
		expect.Equal(t, name, showHeld(got.Files), test.want)
	}
}
