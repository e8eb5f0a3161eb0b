package fuzz

import (
	"context"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/volume"
)

// missing is the name of the one object that does not exist.
const missing = "missing"

// objects is an API server that has every object but one, at once. It stands in for the
// manager, as a real one would take milliseconds for each input. It is safe for concurrent
// use.
type objects struct{}

func (*objects) Subscribe(func(volume.ServiceAccount, volume.Ref)) {}
func (*objects) RegisterPod(volume.Pod, string, []volume.Ref)      {}
func (*objects) UnregisterPod(volume.Pod, string)                  {}
func (*objects) MarkMounted(volume.Pod, string)                    {}
func (*objects) DenialErr(volume.Pod, volume.Ref) error            { return nil }
func (*objects) Refresh(volume.Pod, []volume.Ref)                  {}
func (*objects) ReadAgain(volume.Pod, []volume.Ref)                {}
func (*objects) OnNewCredential(volume.ServiceAccount)             {}

// GetObject returns an object whose keys can be paths, and variables.
func (*objects) GetObject(_ volume.Pod, ref volume.Ref) (*volume.Object, error) {
	if ref.Name == missing {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: strings.ToLower(string(ref.Kind)) + "s"}, ref.Name)
	}
	return &volume.Object{
		Ref:     ref,
		Version: volume.Version{UID: types.UID("uid-of-" + ref.Name), ResourceVersion: "5"},
		Data:    map[string][]byte{"key": []byte("value"), "NAME": []byte("x"), "a.b": nil},
	}, nil
}

// Get returns the pod that all volumes name, ns/pod, under each UID, with the volume that this
// has. Its environment is that of every container.
func (*objects) Get(_ context.Context, asked volume.Pod) (*pod.Spec, error) {
	if asked.Namespace != "ns" || asked.Name != "pod" {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, asked.Name)
	}
	asked.ServiceAccount = "default"
	return &pod.Spec{
		Pod: asked,
		Inline: map[string]pod.InlineVolume{
			settings: {Driver: driver, Attributes: map[string]string{"configMap": "app"}, ReadOnly: true},
		},
		Env: func(string) (volume.Env, []string, error) {
			return volume.Env{Vars: []volume.EnvVar{{Name: "A", Value: "1"}}}, nil, nil
		},
		VolumeSources: func(string) ([]volume.Source, error) {
			ref := volume.Ref{Kind: volume.Secret, Namespace: "ns", Name: "app"}
			return []volume.Source{{Projection: &volume.Projection{Ref: ref}, Field: "spec.volumes[0].secret"}}, nil
		},
	}, nil
}

// Ask says that every pod may have every object: what is not refused by rights
// must be refused by its form.
func (*objects) Ask(context.Context, volume.ServiceAccount, volume.Ref, string, volume.Token) (bool, error) {
	return true, nil
}
