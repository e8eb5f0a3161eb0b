package manager

import (
	"bytes"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/refvol/refvol/pkg/volume"
)

func TestConvert(t *testing.T) {
	yes, no := true, false
	meta := metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "u", ResourceVersion: "7"}
	version := volume.Version{UID: "u", ResourceVersion: "7"}
	for _, tc := range []struct {
		name string
		in   runtime.Object
		want volume.Object
	}{
		{
			"secret",
			&corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{"k": []byte("v")}, Immutable: &yes},
			volume.Object{Ref: secretRef("a"), Version: version, Immutable: true, Data: map[string][]byte{"k": []byte("v")}},
		},
		{"mutable secret", &corev1.Secret{ObjectMeta: meta, Immutable: &no}, volume.Object{Ref: secretRef("a"), Version: version}},
		{
			"config map",
			&corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"k": "v", "e": ""}, BinaryData: map[string][]byte{"b": {0xff}}},
			volume.Object{
				Ref: configMapRef("a"), Version: version, Data: map[string][]byte{"k": []byte("v"), "e": {}},
				BinaryData: map[string][]byte{"b": {0xff}},
			},
		},
	} {
		got, err := convert(tc.in)
		if err != nil || !reflect.DeepEqual(*got, tc.want) {
			t.Errorf("%s: got %v, %v, want %v", tc.name, got, err, tc.want)
		}
	}
}

// TestValuesAreNotPartsOfTheAnswer writes all over the answer after it was decoded: a small
// value must not keep a large answer in memory.
func TestValuesAreNotPartsOfTheAnswer(t *testing.T) {
	cm := configMap("a", "before")
	cm.BinaryData = map[string][]byte{"b": []byte("before")}
	codecs := serializer.NewCodecFactory(newAPIServer(t).client().Scheme())
	for _, info := range codecs.SupportedMediaTypes() {
		for _, obj := range []runtime.Object{secret("a", "before"), cm} {
			var answer bytes.Buffer
			if err := info.Serializer.Encode(obj, &answer); err != nil {
				t.Fatal(err)
			}
			decoded, _, err := info.Serializer.Decode(answer.Bytes(), nil, nil)
			if err != nil {
				t.Fatal(err)
			}
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
