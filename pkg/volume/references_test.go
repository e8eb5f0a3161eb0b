package volume

import (
	"fmt"
	"slices"
	"testing"
)

// Each object is in one of the two lists, once, at its first use.
func TestRefsByNamespace(t *testing.T) {
	spec, err := Parse(map[string]string{"sources": "[{secret: {name: own}}, {secret: {name: s, namespace: other}}, {configMap: {name: own}}, {secret: {name: own}}, {secret: {name: s, namespace: other}}]"}, testPod(), AcrossNamespaces())
	if err != nil {
		t.Fatal(err)
	}
	own := []Reference{
		{Ref: Ref{Kind: Secret, Namespace: "ns", Name: "own"}, Field: "sources[0].secret"},
		{Ref: Ref{Kind: ConfigMap, Namespace: "ns", Name: "own"}, Field: "sources[2].configMap"},
	}
	others := []Reference{{Ref: Ref{Kind: Secret, Namespace: "other", Name: "s"}, Field: "sources[1].secret.namespace"}}
	if got := spec.LocalRefs(testPod()); !slices.Equal(got, own) {
		t.Errorf("of the pod's namespace: got %+v, want %+v", got, own)
	}
	if got := spec.CrossNamespaceRefs(testPod()); !slices.Equal(got, others) {
		t.Errorf("of others: got %+v, want %+v", got, others)
	}
}

// NeedsPod names the author's field that needs the pod's own spec, until the source is resolved.
func TestNeedsPod(t *testing.T) {
	for name, test := range map[string]struct {
		attributes map[string]string
		want       string
	}{
		"objects":         {map[string]string{"secret": "db"}, ""},
		"other sources":   {map[string]string{"sources": "[{env: {path: e, envFrom: [{secretRef: {name: db}}]}}, {versions: {path: v}}]"}, ""},
		"the short form":  {map[string]string{"volume": "conf"}, "volume"},
		"a listed volume": {map[string]string{"sources": "[{secret: {name: db}}, {volume: {name: conf}}, {volume: {name: more}}]"}, "sources[1].volume.name"},
		"a container":     {map[string]string{"sources": "[{podEnv: {path: e, container: app}}]"}, "sources[0].podEnv.container"},
	} {
		spec, err := Parse(test.attributes, testPod())
		if err != nil || spec.NeedsPod() != test.want {
			t.Errorf("%s: got %+v, %v, want %q", name, spec, err, test.want)
		}
	}
	resolved := Source{Volume: "conf", Field: "volume", Projection: &Projection{Ref: Ref{Kind: Secret, Namespace: "ns", Name: "s"}}}
	if at := (&Spec{Sources: []Source{resolved}}).NeedsPod(); at != "" {
		t.Errorf("resolved: got %q", at)
	}
}

// The kubelet lets a later path of a projected volume win. Between two volumes equal paths are a mistake.
func TestPathsOfPodVolumes(t *testing.T) {
	source := func(i int, volume string) Source {
		return Source{Volume: volume, Field: fmt.Sprintf("sources[%d].volume", i), Projection: &Projection{
			Ref: Ref{Kind: Secret, Namespace: "ns", Name: "s"}, Items: []Item{{Key: "k", Path: "k"}},
		}}
	}
	if err := (&Spec{Sources: []Source{source(0, "a"), source(1, "a")}}).Validate(); err != nil {
		t.Errorf("one path twice in a volume is refused: %v", err)
	}
	const want = `sources[1].volume.items[0].path: Invalid value: "k": conflicting duplicate paths: also the path of sources[0].volume.items[0].path`
	if err := (&Spec{Sources: []Source{source(0, "a"), source(1, "b")}}).Validate(); err == nil || err.Error() != want {
		t.Errorf("one path in two volumes: got %v\nwant %s", err, want)
	}
}

// An error shows a value of up to 64 bytes whole.
func TestShorten(t *testing.T) {
	const most = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for value, want := range map[string]string{
		"":         "",
		most:       most,
		most + "g": most + "... (65 bytes)",
		// A character is not cut.
		most[:63] + "ü": most[:63] + "... (65 bytes)",
	} {
		if got := shorten(value); got != want {
			t.Errorf("%q: got %q, want %q", value, got, want)
		}
	}
}
