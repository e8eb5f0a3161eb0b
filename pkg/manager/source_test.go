package manager

import (
	"bytes"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/refvol/refvol/pkg/volume"
)

// TestValuesAreNotPartsOfTheAnswer overwrites the answer after it was decoded: a small value must not keep a large answer in memory.
func TestValuesAreNotPartsOfTheAnswer(t *testing.T) {
	cm := configMap("a", "before")
	cm.BinaryData = map[string][]byte{"b": []byte("before")}
	codecs := serializer.NewCodecFactory(newAPIServer(t).client().Scheme())
	for _, info := range codecs.SupportedMediaTypes() {
		for _, obj := range []runtime.Object{secret("a", "before"), cm} {
			var answer bytes.Buffer
			must(t, info.Serializer.Encode(obj, &answer))
			decoded, _, err := info.Serializer.Decode(answer.Bytes(), nil, nil)
			must(t, err)
			got := objectOf(t, decoded)
			for i := range answer.Bytes() {
				answer.Bytes()[i] = 'X'
			}
			for key, value := range got.Data {
				if string(value) != "before" {
					t.Errorf("%s: %s shares the memory of %q with the answer", info.MediaType, got.Ref, key)
				}
			}
			if value, ok := got.BinaryData["b"]; ok && string(value) != "before" {
				t.Errorf("%s: %s shares the memory of its binary data with the answer", info.MediaType, got.Ref)
			}
		}
	}
}

// TestAnnotationsThatAreCutOff: an annotation that is too long never becomes a valid one by its cut, also in the middle of a character.
func TestAnnotationsThatAreCutOff(t *testing.T) {
	for _, end := range []string{"", "x", "é", "xé", "é1"} {
		cm := configMap("a", "1")
		cm.Annotations = map[string]string{volume.RevisionAnnotation: strings.Repeat("r", volume.MaxRevision) + end}
		if got := objectOf(t, cm).Revision; got.IsValid() != (end == "") || len(got) > maxRevision {
			t.Errorf("%q at the end: %q", end, got)
		}
	}
}
