package binding

import (
	"fmt"
	"strings"
	"testing"

	"github.com/refvol/refvol/pkg/access"
	"github.com/refvol/refvol/pkg/volume"
)

// A refusal names the first objects and counts the others.
func TestRefusalOfManyObjects(t *testing.T) {
	n := &Node{opts: Options{Rights: Rights{CrossNamespace: true, Reviews: &access.Reviews{Verbs: []string{"get"}}}}}
	r, refused := &rights{node: n, spec: &Spec{}, request: &Request{}}, map[volume.Ref]bool{}
	for i := range 12 {
		ref := volume.Ref{Kind: volume.Secret, Namespace: "other", Name: fmt.Sprint("s", i)}
		r.spec.consents, refused[ref] = append(r.spec.consents, volume.Reference{Ref: ref, Field: "f"}), true
	}
	text := r.refusal(refused).Error()
	if n := strings.Count(text, "f: Forbidden: "); n != 10 || !strings.HasSuffix(text, "; and 2 more of the objects that it names") {
		t.Errorf("%d are named: %s", n, text)
	}
}
