package suite

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/refvol/refvol/internal/doclines"
	"github.com/refvol/refvol/internal/must"
)

const (
	// renewalSection is the section of docs/apply.md with the manifest of a pod whose token is renewed.
	renewalSection = "A certificate or a token of the kubelet"
	// hangup is the exit code of a program that SIGHUP has ended.
	hangup = 128 + 1
)

// renewed is the document's pod, with a token in the place of the certificate, and with images of the tests. The program is the probe, which
// SIGHUP ends.
func renewed(t *testing.T, node string) *corev1.Pod {
	t.Helper()
	_, rest, _ := strings.Cut(read(t, "../../../../docs/apply.md"), "\n## "+renewalSection+"\n")
	blocks := doclines.Blocks(rest, "yaml")
	if len(blocks) == 0 {
		t.Fatalf("docs/apply.md has no manifest in the section %q", renewalSection)
	}
	var spec corev1.Pod
	must.Do(t, yaml.UnmarshalStrict([]byte(blocks[0]), &spec))
	sidecar, program, probe := &spec.Spec.InitContainers[0], &spec.Spec.Containers[0], newContainer("probe", nil)
	sidecar.Image, sidecar.ImagePullPolicy = os.Getenv("REFVOL_NOTIFY_IMAGE"), probe.ImagePullPolicy
	i := slices.Index(sidecar.Args, "--process=nginx")
	if i < 0 {
		t.Fatalf("the sidecar has the arguments %q", sidecar.Args)
	}
	sidecar.Args[i] = "--process=probe"
	program.Image, program.ImagePullPolicy, program.Args = probe.Image, probe.ImagePullPolicy, probe.Args
	spec.Name, spec.Spec.TerminationGracePeriodSeconds = "token", new(int64(5))
	spec.Spec.Volumes[1].Projected.Sources[0] = corev1.VolumeProjection{
		ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: new(int64(3600))},
	}
	return onNode(&spec, node)
}

// ended returns the exit code with which the program has ended last, 0 if it hasn't, and -1 if that isn't known.
func (p *pod) ended(ctx context.Context) int32 {
	now, err := p.now(ctx)
	if err != nil || len(now.Status.ContainerStatuses) != 1 {
		return -1
	}
	if last := now.Status.ContainerStatuses[0].LastTerminationState.Terminated; last != nil {
		return last.ExitCode
	}
	return 0
}
