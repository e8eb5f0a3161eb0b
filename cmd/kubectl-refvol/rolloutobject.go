package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"

	"github.com/refvol/refvol/pkg/fleet"
	"github.com/refvol/refvol/pkg/status"
	"github.com/refvol/refvol/pkg/volume"
)

const (
	// afterAnnotation has the value that volume.RolloutAnnotation gets at the end of a rollout. "" means that it is removed.
	afterAnnotation = volume.RolloutAnnotation + "-after"
	// rolloutManager is the field manager of the annotations. Flux reverts the fields of managers whose names start with kubectl.
	rolloutManager = "refvol-rollout"
)

// rolloutState is an object's state in a rollout.
type rolloutState struct {
	status.Version

	// isCanary means that the object is a canary, whose annotation is volume.CanaryAnnotation. Otherwise that is volume.RolloutAnnotation.
	isCanary bool
	// share is the annotation, or "". after is the other annotation of held versions, or nil.
	share string
	after *string
	// isHeld means that volume.RolloutAnnotation is there.
	isHeld bool
	// isPaused means that no rollout may go on.
	isPaused bool
}

// percent returns the effective share.
func (s *rolloutState) percent() int {
	if s.isCanary {
		percent, _ := (&volume.Object{Canary: s.share}).CanaryShare()
		return percent
	}
	percent, _ := volume.ParseShare(s.share)
	return percent
}

// hasAfter reports whether after is a value.
func (s *rolloutState) hasAfter(after *string) bool {
	return (s.after == nil) == (after == nil) && (after == nil || *s.after == *after)
}

// changedError says that the object has changed since the command's last change.
func changedError(object fleet.Object) error {
	return &statusError{fmt.Errorf("%s: somebody else has changed or deleted it: look at the change, and at what its annotations say now, then run the command again", object), no}
}

// rollout returns an object's state, or nil if the object doesn't exist. It requests metadata only, without values.
func (c *cluster) rollout(ctx context.Context, object fleet.Object) (*rolloutState, error) {
	found, err := c.objects(object).Get(ctx, object.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err):
		return nil, nil //nolint:nilnil // the answer is that there is none
	case err != nil:
		return nil, fmt.Errorf("get the metadata of %s: %w", object, err)
	}
	return stateOf(found), nil
}

// setRollout changes the annotations, unless the object has changed since the state from. The answer has metadata only.
func (c *cluster) setRollout(ctx context.Context, object fleet.Object, from *rolloutState, to string, after *string) (*rolloutState, error) {
	annotations := map[string]*string{volume.RolloutAnnotation: &to, afterAnnotation: after}
	switch {
	case from.isCanary:
		annotations = map[string]*string{volume.CanaryAnnotation: &to}
	case to == "":
		annotations[volume.RolloutAnnotation] = nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": from.UID, "resourceVersion": from.ResourceVersion, "annotations": annotations,
	}})
	if err != nil {
		return nil, fmt.Errorf("encode the annotations of %s: %w", object, err)
	}
	found, err := c.objects(object).Patch(ctx, object.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: rolloutManager})
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return nil, changedError(object)
	case err != nil:
		return nil, fmt.Errorf("annotate %s: %w", object, err)
	}
	return stateOf(found), nil
}

func (c *cluster) objects(object fleet.Object) metadata.ResourceInterface {
	return c.metadata.Resource(corev1.SchemeGroupVersion.WithResource(strings.ToLower(object.Kind) + "s")).Namespace(object.Namespace)
}

func stateOf(found *metav1.PartialObjectMetadata) *rolloutState {
	state := &rolloutState{
		Version: status.Version{UID: string(found.UID), ResourceVersion: found.ResourceVersion},
		share:   found.Annotations[volume.RolloutAnnotation], isPaused: found.Annotations[pausedAnnotation] == "true",
	}
	if after, ok := found.Annotations[afterAnnotation]; ok {
		state.after = &after
	}
	_, state.isHeld = found.Annotations[volume.RolloutAnnotation]
	if share, isCanary := found.Annotations[volume.CanaryAnnotation]; isCanary {
		state.share, state.after, state.isCanary = share, nil, true
	}
	return state
}

// podsOf lists the pods of a namespace.
func (c *cluster) podsOf(ctx context.Context, namespace string) (all []corev1.Pod, err error) {
	err = fleet.Each(ctx, c.client.CoreV1().Pods(namespace).List, metav1.ListOptions{}, func(pod *corev1.Pod) { all = append(all, *pod) })
	if err != nil {
		return nil, fmt.Errorf("list the pods of namespace %s: %w", namespace, err)
	}
	return all, nil
}
