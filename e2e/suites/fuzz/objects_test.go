package fuzz

import (
	"context"

	"github.com/refvol/refvol/pkg/pod"
	"github.com/refvol/refvol/pkg/volume"
)

// objects is an API server that has every object at once. It stands in for the
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

func (*objects) GetObject(_ volume.Pod, ref volume.Ref) (*volume.Object, error) {
	return &volume.Object{
		Ref: ref, Version: volume.Version{UID: "uid", ResourceVersion: "5"}, Data: map[string][]byte{"key": []byte("value")},
	}, nil
}

// Get returns the pod that all volumes name, ns/pod, under each UID, with the volume that this has.
func (*objects) Get(_ context.Context, asked volume.Pod) (*pod.Spec, error) {
	asked.ServiceAccount = "default"
	return &pod.Spec{Pod: asked, Inline: map[string]pod.InlineVolume{
		settings: {Driver: driver, Attributes: map[string]string{"configMap": "app"}, ReadOnly: true},
	}}, nil
}

// Ask says that every pod may have every object: what is not refused by rights
// must be refused by its form.
func (*objects) Ask(context.Context, volume.ServiceAccount, volume.Ref, string, volume.Token) (bool, error) {
	return true, nil
}
