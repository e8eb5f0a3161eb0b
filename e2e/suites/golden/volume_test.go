package golden_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/internal/must"
	"github.com/refvol/refvol/pkg/opened"
	"github.com/refvol/refvol/pkg/publisher"
	"github.com/refvol/refvol/pkg/volume"
)

// golden is a file of testdata. All but VolumeID and Tree is written by hand.
type golden struct {
	About string `json:"about"`
	// Pod, Name and Attributes are what the pod's spec says of the volume.
	Pod        volume.Pod        `json:"pod"`
	FSGroup    *int64            `json:"fsGroup,omitempty"`
	Name       string            `json:"volume"`
	Attributes map[string]string `json:"attributes"`
	// Before are the states that the volume has shown, Objects is the one that it shows, and Change is what changes then.
	Before  []state `json:"before,omitempty"`
	Objects state   `json:"objects"`
	Change  state   `json:"change"`
	// Refused are objects that the pod may not have any more, until the change.
	Refused []string `json:"refused,omitempty"`
	// Opened are the paths of files that were opened, and Receipts what is told of objects after a takeover.
	Opened   []string                `json:"opened,omitempty"`
	Receipts map[string]opened.State `json:"receipts,omitempty"`
	// Superseded says that the generation before is still there.
	Superseded bool `json:"superseded,omitempty"`
	// Condition is that of the volume before the change, and Then are files after it; null is a file that is not there.
	Condition publisher.Condition `json:"condition"`
	Then      map[string]*string  `json:"then"`

	VolumeID string  `json:"volumeID,omitempty"`
	Tree     []entry `json:"tree,omitempty"`
}

// state has objects by "kind/namespace/name"; null is one that does not exist.
type state map[string]*object

type object struct {
	UID             types.UID         `json:"uid"`
	ResourceVersion string            `json:"resourceVersion"`
	Data            map[string]string `json:"data,omitempty"`
	BinaryData      map[string][]byte `json:"binaryData,omitempty"`
	// Canary is the annotation of a canary. With 0% the volume shows nothing of it.
	Canary string `json:"canary,omitempty"`
}

func (o *object) version() volume.Version {
	return volume.Version{UID: o.UID, ResourceVersion: o.ResourceVersion}
}

func refOf(text string) volume.Ref {
	parts := strings.SplitN(text, "/", 3)
	return volume.Ref{Kind: volume.Kind(parts[0]), Namespace: parts[1], Name: parts[2]}
}

func nameOf(ref volume.Ref) string { return string(ref.Kind) + "/" + ref.Namespace + "/" + ref.Name }

func load(t *testing.T, file string) *golden {
	t.Helper()
	text := must.Get(os.ReadFile(file))(t)
	g := &golden{}
	decoder := json.NewDecoder(strings.NewReader(string(text)))
	decoder.DisallowUnknownFields()
	must.Do(t, decoder.Decode(g))
	return g
}

func (g *golden) save(t *testing.T, file string) {
	t.Helper()
	var text strings.Builder
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", " ")
	must.Do(t, encoder.Encode(g))
	must.Do(t, os.WriteFile(file, []byte(text.String()), 0o644))
}
