package deploy

import (
	"os"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/refvol/refvol/pkg/payload"
	"github.com/refvol/refvol/pkg/volume"
)

// TestReadmeExample holds the pod that a newcomer sees first to what the examples
// are held to.
func TestReadmeExample(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(readme, -1)
	if len(blocks) == 0 {
		t.Fatal("README.md has no example")
	}
	app := volume.Ref{Kind: volume.ConfigMap, Namespace: exampleNamespace, Name: "app"}
	objects := payload.Objects{app: {Ref: app, Data: map[string][]byte{"app.yaml": []byte("x")}}}
	for _, block := range blocks {
		pod := only[*corev1.Pod](t, decode(t, "README.md", block[1]))
		checkImages(t, pod)
		checkVolumes(t, pod, objects)
	}
}

// TestDocumentedTargets has every make target that a document names exist.
func TestDocumentedTargets(t *testing.T) {
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md"} {
		text, err := os.ReadFile("../" + name)
		if err != nil {
			t.Fatal(err)
		}
		for _, target := range regexp.MustCompile("(?m)(?:`|^ +)make ([a-z0-9-]+)").FindAllSubmatch(text, -1) {
			if !strings.Contains(string(makefile), "\n"+string(target[1])+":") {
				t.Errorf("%s names make %s, which the Makefile has not", name, target[1])
			}
		}
	}
}
