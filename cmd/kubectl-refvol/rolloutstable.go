package main

import (
	"context"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/refvol/refvol/pkg/fleet"
	"github.com/refvol/refvol/pkg/status"
	"github.com/refvol/refvol/pkg/volume"
)

// canaryUses returns the objects that pods' volumes of a driver name as canaries, each with the objects that volumes name beside it.
func canaryUses(pods []corev1.Pod, driver string) map[fleet.Object][]fleet.Object {
	uses := map[fleet.Object][]fleet.Object{}
	for i := range pods {
		pod := volume.Pod{Namespace: pods[i].Namespace, Name: pods[i].Name, ServiceAccount: pods[i].Spec.ServiceAccountName}
		for j := range pods[i].Spec.Volumes {
			csi := pods[i].Spec.Volumes[j].CSI
			if csi == nil || csi.Driver != driver {
				continue
			}
			spec, err := volume.Parse(csi.VolumeAttributes, pod, volume.AcrossNamespaces())
			if err != nil { // such a pod does not start
				continue
			}
			canaries, stable := split(spec)
			for _, canary := range canaries {
				uses[canary] = append(uses[canary], stable...)
			}
		}
	}
	return uses
}

// split returns the canaries and the other objects of a volume.
func split(spec *volume.Spec) (canaries, stable []fleet.Object) {
	for i := range spec.Sources {
		for _, use := range spec.Sources[i].References() {
			object := fleet.Object{Kind: string(use.Ref.Kind), Namespace: use.Ref.Namespace, Name: use.Ref.Name}
			if use.Canary {
				canaries = append(canaries, object)
			} else {
				stable = append(stable, object)
			}
		}
	}
	return canaries, stable
}

// findCanaries finds out which of the objects the pods name as canaries, and the versions of the objects beside these.
func (r *roller) findCanaries(ctx context.Context) error {
	r.stable = map[fleet.Object]*status.Version{}
	for namespace := range r.last.namespaces() {
		pods, err := r.calls.pods(ctx, namespace)
		if err != nil {
			return err
		}
		uses := canaryUses(pods, r.cluster.driver)
		for i, object := range r.objects {
			beside, isCanary := uses[object]
			r.now[i].isCanary = r.now[i].isCanary || isCanary
			for _, stable := range beside {
				if _, isKnown := r.stable[stable]; !isKnown {
					r.stable[stable] = r.versionOf(ctx, stable)
				}
			}
		}
	}
	return nil
}

// versionOf returns an object's version, the zero Version if the object doesn't exist, or nil if that isn't known.
func (r *roller) versionOf(ctx context.Context, object fleet.Object) *status.Version {
	switch state, err := r.calls.state(ctx, object); {
	case err != nil:
		return nil
	case state == nil:
		return &status.Version{}
	default:
		return &state.Version
	}
}

// sayStable says which objects beside the canaries have changed since the command began, or may have.
func (r *roller) sayStable(ctx context.Context) {
	for _, object := range slices.SortedFunc(maps.Keys(r.stable), func(a, b fleet.Object) int { return strings.Compare(a.String(), b.String()) }) {
		then, now := r.stable[object], r.versionOf(ctx, object)
		switch {
		case then == nil || now == nil:
			r.calls.say("whether %s has changed since the command began isn't known: the share does not take that back", object)
		case *then != *now:
			r.calls.say("%s has changed since the command began: the share does not take that back", object)
		}
	}
}
