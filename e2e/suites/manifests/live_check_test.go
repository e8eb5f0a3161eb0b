package manifests

import (
	"context"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/pkg/check"
	"github.com/refvol/refvol/pkg/volume"
)

// nothingKnown is a cluster whose objects the caller may not read.
type nothingKnown struct{}

func (nothingKnown) Lookup(context.Context, volume.Ref) (check.Object, error) {
	return check.Object{Exists: check.Unknown}, nil
}

func (nothingKnown) CanI(context.Context, volume.ServiceAccount, volume.Ref, string) (check.Answer, error) {
	return check.Unknown, nil
}

func (nothingKnown) Text(context.Context, volume.Ref, string) ([]byte, error) { return nil, nil }

// beyondBudget is a pod that the policy leaves as it is, because it would cost more than the API server allows. check can't know that.
const beyondBudget = "100 containers with 100 volumes"

// TestCheckKnowsThePolicy: what `kubectl refvol check --live -n` says before a namespace gets the label is what the policy does with each
// case afterwards.
func TestCheckKnowsThePolicy(t *testing.T) {
	compared := 0
	for _, c := range liveCases(liveSuite{live: "live", plain: "plain"}) {
		if c.namespace != "" || c.says != "" || c.name == beyondBudget { // check is about namespaces that may get the label
			continue
		}
		checker, err := check.New(check.Options{Driver: harness.DriverName, Namespace: "live", Cluster: nothingKnown{}})
		if err != nil {
			t.Fatal(err)
		}
		report, err := checker.Label(t.Context(), "live", check.MaxVolumeSize, []corev1.Pod{*c.pod})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		live := slices.Sorted(slices.Values(report.Pods[0].Live))
		if want := slices.Sorted(maps.Keys(c.moves)); !slices.Equal(live, want) {
			t.Errorf("%s: check says that %q become live, and the policy has %q: %+v", c.name, live, want, report.Pods[0].Native)
		}
		compared++
	}
	if compared < 50 {
		t.Errorf("%d cases were compared", compared)
	}
}
