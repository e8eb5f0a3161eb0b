package manager

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/pkg/volume"
)

func TestConvert(t *testing.T) {
	yes, no := true, false
	meta := metav1.ObjectMeta{Namespace: "ns", Name: "a", UID: "u", ResourceVersion: "7"}
	version := volume.Version{UID: "u", ResourceVersion: "7"}
	for _, tc := range []struct {
		name string
		kind volume.Kind
		in   any
		want volume.Object
	}{
		{
			"secret", volume.Secret,
			&corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{"k": []byte("v")}, Immutable: &yes},
			volume.Object{Ref: secretRef("a"), Version: version, Immutable: true, Data: map[string][]byte{"k": []byte("v")}},
		},
		{
			"mutable secret", volume.Secret,
			&corev1.Secret{ObjectMeta: meta, Immutable: &no},
			volume.Object{Ref: secretRef("a"), Version: version, Data: map[string][]byte{}},
		},
		{
			"config map", volume.ConfigMap,
			&corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"k": "v", "e": ""}, BinaryData: map[string][]byte{"b": {0xff}}},
			volume.Object{
				Ref: configMapRef("a"), Version: version, Data: map[string][]byte{"k": []byte("v"), "e": {}},
				BinaryData: map[string][]byte{"b": {0xff}},
			},
		},
	} {
		got, err := newSources(nil)[tc.kind].convert(tc.in)
		if err != nil || !reflect.DeepEqual(*got, tc.want) {
			t.Errorf("%s: got %v, %v, want %v", tc.name, got, err, tc.want)
		}
	}
}

func TestConvertRefusesOtherTypes(t *testing.T) {
	for _, tc := range []struct {
		kind volume.Kind
		in   any
		want string
	}{
		{volume.Secret, &corev1.ConfigMap{}, "unexpected object type: *v1.ConfigMap"},
		{volume.ConfigMap, &corev1.Secret{}, "unexpected object type: *v1.Secret"},
		{volume.Secret, corev1.Secret{}, "unexpected object type: v1.Secret"},
		{volume.Secret, nil, "unexpected object type: <nil>"},
	} {
		if got, err := newSources(nil)[tc.kind].convert(tc.in); err == nil || err.Error() != tc.want {
			t.Errorf("got %v, %v, want %s", got, err, tc.want)
		}
	}
}

// TestConvertCopies writes all over the original afterwards.
func TestConvertCopies(t *testing.T) {
	s := secret("a", "before")
	cm := configMap("a", "before")
	cm.BinaryData = map[string][]byte{"b": []byte("before")}
	sources := newSources(nil)
	fromSecret, err1 := sources[volume.Secret].convert(s)
	fromMap, err2 := sources[volume.ConfigMap].convert(cm)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	copy(s.Data["k"], "XXXXXX")
	s.Data["new"] = nil
	copy(cm.BinaryData["b"], "XXXXXX")
	cm.Data["k"] = "XXXXXX"
	if string(fromSecret.Data["k"]) != "before" || len(fromSecret.Data) != 1 {
		t.Error("the copy of a Secret shares memory with it")
	}
	if string(fromMap.Data["k"]) != "before" || string(fromMap.BinaryData["b"]) != "before" {
		t.Error("the copy of a ConfigMap shares memory with it")
	}
}
