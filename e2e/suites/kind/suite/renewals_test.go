package suite

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/refvol/refvol/internal/doclines"
)

const (
	// renewalSection is the section of docs/apply.md with the manifest of TestNotifyOfPodCertificate.
	renewalSection = "A certificate or a token of the kubelet"
	// renewalTimeout is for the next time that the kubelet renews a certificate by itself: from 6 to 13 minutes after it was issued, and a sync.
	renewalTimeout = 18 * time.Minute
	// hangup is the exit code of a program that SIGHUP has ended.
	hangup = 128 + 1
)

// TestNotifyOfPodCertificate: when the kubelet has renewed a certificate of a pod, or a token, the sidecar of docs/apply.md signals the
// program. The test is the signer. A kubelet that restarts renews both at once, because it keeps them in its memory only. In the long form the kubelet then
// renews the certificate because its time has come.
func TestNotifyOfPodCertificate(t *testing.T) {
	t.Parallel()
	node := takeQuietNode(t)
	n := newNamespace(t)
	n.needsPodCertificates(t)
	certificate, token := renewed(t, node, "certificate"), renewed(t, node, "token")
	source := &certificate.Spec.Volumes[1].Projected.Sources[0]
	s := n.startSigner(source.PodCertificate.SignerName)
	token.Spec.Volumes[1].Projected.Sources[0] = corev1.VolumeProjection{
		ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: new(int64(3600))},
	}
	bundle := certificate.Spec.Containers[0].VolumeMounts[0].MountPath + "/" + source.PodCertificate.CredentialBundlePath
	signed, tokened := n.start(certificate), n.start(token)
	for _, p := range []*pod{signed, tokened} {
		if ended := p.ended(t.Context()); ended != 0 {
			t.Fatalf("before any renewal the program of pod %s has ended with %d", p.Name, ended)
		}
	}
	first := s.awaitInUse(signed, bundle, 0, podTimeout)

	mustDocker(t, "exec", node, "systemctl", "restart", "kubelet")
	second := s.awaitInUse(signed, bundle, first, restartTimeout)
	for _, p := range []*pod{signed, tokened} {
		eventually(t, restartTimeout, "the program of pod "+p.Name+" is signalled", func(ctx context.Context) error {
			if ended := p.ended(ctx); ended != hangup {
				return fmt.Errorf("it has ended with %d", ended)
			}
			return nil
		})
	}
	if os.Getenv("REFVOL_LONG") == "" {
		return
	}
	signed.awaitReady()
	runs, began := signed.Status.ContainerStatuses[0].RestartCount, time.Now()
	s.awaitInUse(signed, bundle, second, renewalTimeout)
	eventually(t, restartTimeout, "the program is signalled again", func(context.Context) error {
		if signed.awaitReady(); signed.Status.ContainerStatuses[0].RestartCount <= runs {
			return fmt.Errorf("it has restarted %d times, as before", runs)
		}
		return nil
	})
	t.Logf("the kubelet renewed the certificate after %s", time.Since(began).Round(time.Second))
}

// renewed is the document's pod, with images of the tests. The program is the probe, which SIGHUP ends.
func renewed(t *testing.T, node, name string) *corev1.Pod {
	t.Helper()
	text, err := os.ReadFile("../../../../docs/apply.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n## "+renewalSection+"\n")
	blocks := doclines.Blocks(rest, "yaml")
	if len(blocks) == 0 {
		t.Fatalf("docs/apply.md has no manifest in the section %q", renewalSection)
	}
	var spec corev1.Pod
	if err := yaml.UnmarshalStrict([]byte(blocks[0]), &spec); err != nil {
		t.Fatal(err)
	}
	sidecar, program, probe := &spec.Spec.InitContainers[0], &spec.Spec.Containers[0], newContainer("probe", nil)
	sidecar.Image, sidecar.ImagePullPolicy = notifyImage(), probe.ImagePullPolicy
	i := slices.Index(sidecar.Args, "--process=nginx")
	if i < 0 {
		t.Fatalf("the sidecar has the arguments %q", sidecar.Args)
	}
	sidecar.Args[i] = "--process=probe"
	program.Image, program.ImagePullPolicy, program.Args = probe.Image, probe.ImagePullPolicy, probe.Args
	spec.Name, spec.Spec.TerminationGracePeriodSeconds = name, new(int64(5))
	return onNode(&spec, node)
}

// notifyImage is the image of the sidecar.
func notifyImage() string {
	if image := os.Getenv("REFVOL_NOTIFY_IMAGE"); image != "" {
		return image
	}
	return "localhost/refvol/refvol-notify:e2e"
}

// ended returns the exit code with which the program has ended last, 0 if it hasn't, and -1 if that isn't known.
func (p *pod) ended(ctx context.Context) int32 {
	now, err := p.client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
	if err != nil || len(now.Status.ContainerStatuses) != 1 {
		return -1
	}
	if last := now.Status.ContainerStatuses[0].LastTerminationState.Terminated; last != nil {
		return last.ExitCode
	}
	return 0
}

// awaitInUse waits until a pod's file has a certificate with its key, newer than one before, and returns its number.
func (s *signer) awaitInUse(p *pod, file string, before int64, timeout time.Duration) (serial int64) {
	s.t.Helper()
	eventually(s.t, timeout, fmt.Sprint("a certificate after number ", before), func(ctx context.Context) error {
		text, err := p.ask(ctx, p.Spec.Containers[0].Name, "read", file)
		if err != nil {
			return err
		}
		pair, err := tls.X509KeyPair([]byte(text), []byte(text))
		if err != nil {
			return errors.New("the file has no certificate that matches its key") // the cause may quote it
		}
		serial = pair.Leaf.SerialNumber.Int64()
		if issued := s.issuedTo(p.Name); serial <= before || !slices.Contains(issued, serial) {
			return fmt.Errorf("the file has number %d of %v", serial, issued)
		}
		return nil
	})
	return serial
}
