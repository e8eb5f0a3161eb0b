package suite

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	nativeSuffix = "-native"
	refvolSuffix = "-refvol"
	sourceSuffix = "-source"
)

// identity is whom a pod's container runs as.
type identity struct {
	name     string
	security corev1.PodSecurityContext
}

func identities() []identity {
	return []identity{
		{"root", corev1.PodSecurityContext{RunAsUser: new(int64(0)), RunAsGroup: new(int64(0))}},
		{"non-root", corev1.PodSecurityContext{RunAsUser: new(int64(1000)), RunAsGroup: new(int64(1000))}},
		{"non-root with fsGroup", corev1.PodSecurityContext{RunAsUser: new(int64(1000)), RunAsGroup: new(int64(1000)), FSGroup: new(int64(1001))}},
	}
}

// A volume of refvol shows what the kubelet's own volume in the same pod shows: each
// path with its type, mode, owner and content, or that it may not be read. One says in attributes what the kubelet's volume says. Another
// names the kubelet's volume itself, and is read with the node's rights.
func TestParity(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{kindConfigMap, kindSecret} {
		for _, who := range identities() {
			t.Run(kind+"/"+who.name, func(t *testing.T) {
				t.Parallel()
				n, cases := newNamespace(t), staticCases(kind)
				if n.hasUsers() {
					cases = append(cases, userCases(kind)...)
				} else {
					t.Run("users", func(t *testing.T) {
						t.Skip("left out: the API server drops the owners of files: it lacks the feature gate AtomicWriteVolumeUserFields of Kubernetes 1.37")
					})
				}
				p := startParity(n, who, cases)
				got := p.snapshots(t)
				for _, c := range cases {
					t.Run(c.name, func(t *testing.T) { checkAlike(t, got, c) })
				}
			})
		}
	}
}

// startParity starts a pod with three volumes for each case, with what they show.
func startParity(n *namespace, who identity, cases []parityCase) *pod {
	n.t.Helper()
	var volumes []corev1.Volume
	for _, c := range cases {
		for _, o := range c.objects {
			n.put(o.kind, o.name, *o.contents)
		}
		volumes = append(volumes, c.view.native(c.name+nativeSuffix), c.view.refvol(n.t, c.name+refvolSuffix),
			asNode(c.name+sourceSuffix, c.name+nativeSuffix))
	}
	spec := newPod("reader", volumes...)
	spec.Spec.SecurityContext = &who.security
	return n.start(spec)
}

// checkAlike compares the volumes of a case.
func checkAlike(t *testing.T, got map[string]snapshot, c parityCase) {
	t.Helper()
	if native := got[c.name+nativeSuffix]; len(native) < 3 {
		t.Errorf("the kubelet's volume has no more than %q", native)
	}
	for _, d := range c.differences(got) {
		t.Error(d)
	}
}

// differences are those between the kubelet's volume and each of refvol's.
func (c *parityCase) differences(got map[string]snapshot) (all []string) {
	for _, suffix := range []string{refvolSuffix, sourceSuffix} {
		for _, d := range compare(got[c.name+nativeSuffix], got[c.name+suffix]) {
			all = append(all, c.name+suffix+"/"+d)
		}
	}
	return all
}

// What changes while the pod runs changes all volumes alike, once it has come to the
// kubelet's.
func TestParityOfChanges(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{kindConfigMap, kindSecret} {
		for _, who := range identities()[1:] {
			t.Run(kind+"/"+who.name, func(t *testing.T) {
				t.Parallel()
				n, others := newNamespace(t), newNamespace(t)
				others.put(kind, "namesake", *text("a", "other"))
				cases := changingCases(kind)
				p := startParity(n, who, cases)
				before := p.snapshots(t)
				for _, c := range cases {
					checkAlike(t, before, c)
				}
				applyChanges(n, cases)
				others.put(kind, "namesake", *text("a", "changed"))
				p.awaitChanges(before, cases)
				after := p.snapshots(t)
				for _, c := range cases {
					t.Run(c.name, func(t *testing.T) {
						checkAlike(t, after, c)
						changed := !maps.Equal(before[c.name+nativeSuffix], after[c.name+nativeSuffix])
						if changed == c.keeps {
							t.Errorf("the kubelet's volume changed: %t; it shows %q", changed, after[c.name+nativeSuffix])
						}
					})
				}
			})
		}
	}
}

func applyChanges(n *namespace, cases []parityCase) {
	for _, c := range cases {
		for _, o := range c.changes {
			if o.contents == nil {
				n.drop(o.kind, o.name)
			} else {
				n.put(o.kind, o.name, *o.contents)
			}
		}
	}
}

// awaitChanges waits until the kubelet has brought all changes to its volumes, and all volumes are alike.
func (p *pod) awaitChanges(before map[string]snapshot, cases []parityCase) {
	p.t.Helper()
	began := time.Now()
	// The last one first, so that the node has little to do meanwhile.
	p.awaitText(mountDir+"updated"+nativeSuffix+"/a", "changed", nativeTimeout)
	p.t.Logf("the kubelet's volume had the last change after %.1f s", time.Since(began).Seconds())
	eventually(p.t, nativeTimeout, "all changes", func(ctx context.Context) error {
		now, err := p.trySnapshots(ctx)
		if err != nil {
			return err
		}
		var late []error
		for _, c := range cases {
			if !c.keeps && maps.Equal(now[c.name+nativeSuffix], before[c.name+nativeSuffix]) {
				late = append(late, fmt.Errorf("%s is as it was", c.name))
			}
			if d := c.differences(now); len(d) > 0 {
				late = append(late, fmt.Errorf("%q", d))
			}
		}
		return errors.Join(late...)
	})
	p.t.Logf("all volumes are alike after %.1f s", time.Since(began).Seconds())
}
