package check

import (
	"context"
	"slices"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// fakeAdmission is an API server with a test's policies, and keeps the pods that it was sent.
type fakeAdmission struct {
	t      *testing.T
	admit  func(p *corev1.Pod) error // changes a pod, or refuses it
	policy error                     // the answer to a question about a policy
	sent   []*corev1.Pod
	asked  []string // the names of policies
}

// Create refuses what would create a pod, and what is no new pod.
func (a *fakeAdmission) Create(_ context.Context, p *corev1.Pod, opts metav1.CreateOptions) (*corev1.Pod, error) {
	if !slices.Equal(opts.DryRun, []string{metav1.DryRunAll}) {
		a.t.Errorf("pod %s is created, and not as a dry run", p.GenerateName)
	}
	a.sent = append(a.sent, p.DeepCopy())
	p = p.DeepCopy()
	if a.admit != nil {
		if err := a.admit(p); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (a *fakeAdmission) Get(_ context.Context, name string, _ metav1.GetOptions) (*admissionregistrationv1.MutatingAdmissionPolicy, error) {
	a.asked = append(a.asked, name)
	return &admissionregistrationv1.MutatingAdmissionPolicy{}, a.policy
}

func (a *fakeAdmission) options(label string, pods ...corev1.Pod) LabelOptions {
	return LabelOptions{Label: label, Namespace: "ns", Pods: pods, Creator: a, Policies: a, MaxVolumeSize: MaxVolumeSize}
}

// live makes native volumes of a pod live that a container mounts as a whole, as deploy/components/live does.
func live(p *corev1.Pod) error {
	if p.Labels[LiveLabel] != isOn {
		return nil
	}
	for _, v := range slices.Clone(p.Spec.Volumes) {
		name, moves := "refvol-"+v.Name, false
		for i := range p.Spec.Containers {
			for j := range p.Spec.Containers[i].VolumeMounts {
				if m := &p.Spec.Containers[i].VolumeMounts[j]; isNative(&v) && m.Name == v.Name && m.SubPath == "" {
					m.Name, moves = name, true
				}
			}
		}
		if moves {
			p.Spec.Volumes = append(p.Spec.Volumes, driven(name, map[string]string{"volume": v.Name}))
		}
	}
	return nil
}

// restart adds a sidecar that follows some volumes.
func restart(follows ...string) func(p *corev1.Pod) error {
	return func(p *corev1.Pod) error {
		if p.Labels[RestartLabel] != isOn {
			return nil
		}
		sidecar := corev1.Container{Name: notifyProgram, VolumeMounts: []corev1.VolumeMount{{Name: notifyState}}}
		for _, name := range follows {
			sidecar.VolumeMounts = append(sidecar.VolumeMounts, corev1.VolumeMount{Name: name})
		}
		p.Spec.InitContainers = append([]corev1.Container{sidecar}, p.Spec.InitContainers...)
		return nil
	}
}

func driven(name string, attributes map[string]string) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{
		Driver: driver, ReadOnly: new(true), VolumeAttributes: attributes,
	}}}
}

// forbidden is what admission answers.
func forbidden(why error) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "p", why)
}

func newLabelChecker(t *testing.T, objects map[string]Object) *Checker {
	t.Helper()
	c, err := New(Options{Driver: driver, Namespace: "ns", Cluster: &fakeCluster{objects: objects}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}
