package suite

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// manifest decodes the first object of a file of deploy/ that is the one meant.
func manifest[T any](t *testing.T, path string, meant func(T) bool) T {
	t.Helper()
	root, err := harness.Repository()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "deploy", path))
	if err != nil {
		t.Fatal(err)
	}
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		var object T
		if err := documents.Decode(&object); err != nil {
			t.Fatal(errors.Join(errors.New(path+" has no such object"), err))
		}
		if meant(object) {
			return object
		}
	}
}

// transformer is a kustomize transformer with a patch.
type transformer struct {
	Metadata struct{ Name string }
	Patch    string
}

// component is what a test reads of a kustomize component.
type component struct {
	Patches []struct {
		Target struct{ Kind string }
		Patch  string
	}
}

// rightsPatch returns the JSON patch that gives the plugin's account what a part takes.
func rightsPatch(t *testing.T, part string) []byte {
	t.Helper()
	found := manifest(t, "combine/rights.yaml", func(r transformer) bool { return r.Metadata.Name == "rights-"+part })
	return asJSON(t, found.Patch)
}

// daemonSetPatch returns the JSON patch that a component has for the plugin's DaemonSet.
func daemonSetPatch(t *testing.T, name string) []byte {
	t.Helper()
	found := manifest(t, "components/"+name+"/kustomization.yaml", func(component) bool { return true })
	for _, patch := range found.Patches {
		if patch.Target.Kind == "DaemonSet" {
			return asJSON(t, patch.Patch)
		}
	}
	t.Fatalf("component %s has no patch for the DaemonSet", name)
	return nil
}

func asJSON(t *testing.T, patch string) []byte {
	t.Helper()
	text, err := yaml.ToJSON([]byte(patch))
	if err != nil {
		t.Fatal(err)
	}
	return text
}
