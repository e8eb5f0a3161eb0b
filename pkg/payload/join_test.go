package payload

import (
	"errors"
	"strings"
	"testing"

	"github.com/refvol/refvol/pkg/volume"
)

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
	state[volume.Ref{Kind: volume.ConfigMap, Namespace: "ns", Name: "c"}].BinaryData = map[string][]byte{"raw": []byte("\xff")}
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
		got, err := Render(spec(joined(test.parts...)), state, Options{})
		if err != nil {
			t.Errorf("%q: %v", test.parts, err)
			continue
		}
		file := got.Files[0]
		if file.Path != "d/ca.pem" || string(file.Data) != test.want || len(file.Refs) != test.refs || file.Mode != volume.DefaultMode {
			t.Errorf("%q: got %q of %v, %s", test.parts, file.Data, file.Refs, file)
		}
	}
}

func TestRenderJoinRefuses(t *testing.T) {
	state := objects(values(volume.ConfigMap, "c", "k", "v"), values(volume.Secret, "large", "k", strings.Repeat("x", 1<<20)))
	_, err := Render(spec(joined("ConfigMap/none/k", "ConfigMap/c/none", "Secret/none/k")), state, Options{})
	var missing *MissingError
	want := `part ConfigMap/none/k: ConfigMap "ns/none" not found` +
		`; part ConfigMap/c/none: ConfigMap "ns/c": configmap references non-existent config key: none (it has k)` +
		`; part Secret/none/k: Secret "ns/none" not found`
	if !errors.As(err, &missing) || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	var tooLarge *TooLargeError
	_, err = Render(spec(joined("Secret/large/k", "Secret/large/k", "Secret/large/k", "Secret/large/k")), state, Options{})
	if !errors.As(err, &tooLarge) || !strings.HasPrefix(err.Error(), "sources[0].join: Too long: the joined and expanded files of a volume and ") {
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
	got, err := Render(s, objects(values(volume.ConfigMap, "c", "k", canary)), Options{})
	if err != nil {
		t.Fatal(err)
	}
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
	got, err = Render(s, both, Options{Refused: refused})
	if err != nil {
		t.Fatal(err)
	}
	if text := string(got.Files[0].Data); strings.Contains(text, "ConfigMap") || !strings.Contains(text, `"name": "s"`) {
		t.Errorf("without the ConfigMap: %s", text)
	}
}
