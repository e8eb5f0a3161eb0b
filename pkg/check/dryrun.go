package check

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PodCreator creates pods of one namespace. A client-go client implements it.
type PodCreator interface {
	Create(ctx context.Context, pod *corev1.Pod, opts metav1.CreateOptions) (*corev1.Pod, error)
}

const (
	// notifyState and notifyEnv are the volumes that the policy of deploy/components/restart adds.
	notifyState, notifyEnv = "refvol-notify-state", "refvol-notify-env"
	// tokenPrefix begins the name of the volume that the API server adds for the service account's token.
	tokenPrefix = "kube-api-access-"
	isOn, isOff = "true", "false"
)

// tried is the API server's answer to a pod with a label. pod is nil if it was refused.
type tried struct {
	pod     *corev1.Pod
	problem string // refused only with the label
	unknown string // refused also without the label
}

// try asks the API server to create a pod with a label, without creating it. If it refuses, the same pod is tried without the label, to
// find out whether the label is the reason. The error is about an API server that gives no answer.
func try(ctx context.Context, pods PodCreator, p *corev1.Pod, label string) (tried, error) {
	if p.Labels[label] != isOff {
		p = withLabel(p, label, isOn)
	}
	created, refusal, err := create(ctx, pods, p)
	if err != nil || created != nil {
		return tried{pod: created}, err
	}
	// "false" and not absent, because the namespace may have the label already.
	created, also, err := create(ctx, pods, withLabel(p, label, isOff))
	switch {
	case err != nil:
		return tried{}, err
	case created != nil:
		return tried{problem: refusal}, nil
	}
	return tried{unknown: also}, nil
}

func withLabel(p *corev1.Pod, label, value string) *corev1.Pod {
	p = p.DeepCopy()
	metav1.SetMetaDataLabel(&p.ObjectMeta, label, value)
	return p
}

// create sends a dry run. It returns the pod, or the text of the refusal.
func create(ctx context.Context, pods PodCreator, p *corev1.Pod) (created *corev1.Pod, refusal string, err error) {
	created, err = pods.Create(ctx, p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	switch {
	case err == nil:
		return created, "", nil
	case isRefusal(err):
		return nil, err.Error(), nil
	}
	return nil, "", fmt.Errorf("create a pod like %s/%s as a dry run: %w", p.Namespace, strings.TrimSuffix(p.GenerateName, "-"), err)
}

// isRefusal reports whether an error is about the pod, and not about the caller, the namespace or the API server.
func isRefusal(err error) bool {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return false
	}
	switch code := answer.Status().Code; code {
	case http.StatusUnauthorized, http.StatusNotFound, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return false
	case http.StatusForbidden: // Admission answers so too. Only the text distinguishes a caller who lacks the right.
		return !strings.Contains(err.Error(), `cannot create resource "pods"`)
	default:
		return code >= http.StatusBadRequest && code < http.StatusInternalServerError
	}
}

// anew returns the pod that would be created in place of a running one, without what the API server adds at admission.
func anew(p *corev1.Pod) *corev1.Pod {
	made := &corev1.Pod{Spec: *p.Spec.DeepCopy()}
	made.Namespace, made.GenerateName = p.Namespace, cmp.Or(p.GenerateName, p.Name+"-")
	made.Labels, made.Annotations = p.Labels, p.Annotations
	s := &made.Spec
	s.NodeName, s.EphemeralContainers = "", nil
	s.Priority, s.PreemptionPolicy, s.Overhead = nil, nil, nil // follow from the classes
	hasSidecar := slices.ContainsFunc(s.InitContainers, isOwnSidecar)
	s.InitContainers = slices.DeleteFunc(s.InitContainers, isOwnSidecar)
	isAdded := func(name string) bool {
		return strings.HasPrefix(name, tokenPrefix) || hasSidecar && (name == notifyState || name == notifyEnv)
	}
	s.Volumes = slices.DeleteFunc(s.Volumes, func(v corev1.Volume) bool { return isAdded(v.Name) })
	for _, containers := range [][]corev1.Container{s.InitContainers, s.Containers} {
		for i := range containers {
			containers[i].VolumeMounts = slices.DeleteFunc(containers[i].VolumeMounts, func(m corev1.VolumeMount) bool { return isAdded(m.Name) })
		}
	}
	return made
}

// isOwnSidecar reports whether the policy of deploy/components/restart has added a container. An author's sidecar has no such volume.
func isOwnSidecar(c corev1.Container) bool {
	return c.Name == notifyProgram && slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == notifyState })
}

// likeness returns a text that is equal for pods of one controller that differ only in what the controller sets for each of them: the name,
// the node of a DaemonSet, and the host name and the claims of a StatefulSet. It is "" for a pod without a controller.
func likeness(p, made *corev1.Pod, label string) (string, error) {
	owner := metav1.GetControllerOf(p)
	if owner == nil {
		return "", nil
	}
	s := made.Spec.DeepCopy()
	s.Hostname = ""
	if owner.Kind == "DaemonSet" {
		s.Affinity = nil
	}
	for i := range s.Volumes {
		if claim := s.Volumes[i].PersistentVolumeClaim; claim != nil {
			claim.ClaimName = ""
		}
	}
	text, err := json.Marshal([]any{owner.UID, owner.Kind, owner.Name, p.Labels[label], p.Annotations[label], s})
	if err != nil {
		return "", fmt.Errorf("encode the spec of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return string(text), nil
}

// isLeftOut reports whether a pod is never created again by the API server: it has ended, or it is static.
func isLeftOut(p *corev1.Pod) bool {
	_, isMirror := p.Annotations[corev1.MirrorPodAnnotationKey]
	return isMirror || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}
