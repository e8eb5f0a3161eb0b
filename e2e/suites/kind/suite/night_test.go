package suite

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestOperatorsNight does what an operator did, by the documents alone. Each fault is refused where it is made, or
// `kubectl refvol status` says it.
func TestOperatorsNight(t *testing.T) {
	t.Parallel()
	useAllNodes(t)
	s := newShell(t, "night")
	helm := func(command, values string) string {
		return "helm " + command + " refvol deploy/charts/refvol --namespace refvol-system " +
			"--set image.registry=registry.example.com,image.tag=v0.1.0,image.pullPolicy=IfNotPresent" + values
	}
	if s.refusesDefaults(helm("install", "")) {
		return
	}
	s.output(helm("install", ""))
	s.output("kubectl --namespace refvol-system rollout status daemonset/refvol-plugin")
	s.wantRunning(s.image, "--identity=node", true)
	eventually(t, podTimeout, "the status is normal", func(context.Context) error {
		out, err := s.run("kubectl refvol status")
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	})

	// A publish that is refused, and the admission policy that refuses the next one.
	showing := func(name, policy string) *corev1.Pod {
		v := refvol("live", attributes{"volume": "settings", "updatePolicy": policy})
		v.CSI.Driver = s.driver
		pod := newPod(name, v)
		pod.Spec.Volumes = append(pod.Spec.Volumes, native("settings", "settings"))
		return pod
	}
	s.pods.createConfigMap("settings", object{"key": "text"})
	hangs := s.pods.create(showing("hangs", "pinned"))
	s.statusSays(s.pods.name+"/hangs", "live", "InvalidArgument", `Unsupported value: "pinned"`)
	hangs.delete()
	s.output(helm("upgrade", ",admission.enabled=true"))
	eventually(t, podTimeout, "the pod is refused", func(ctx context.Context) error {
		_, err := s.client.CoreV1().Pods(s.pods.name).Create(ctx, showing("refused", "pinned"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil || !strings.Contains(err.Error(), "updatePolicy: Unsupported value") {
			return fmt.Errorf("got %w", err)
		}
		return nil
	})

	// A flag that there isn't, one with a bad value, and a right that is taken away.
	if out, err := s.run(helm("upgrade", ",extraArgs={--resync-intervall=1m}")); err == nil || !strings.Contains(out, "/extraArgs/0") {
		t.Errorf("a misspelled flag: %v, %s", err, out)
	}
	if out, err := s.run(helm("upgrade", ",resyncInterval=0s")); err == nil || !strings.Contains(out, "--resync-interval: Invalid value: 0s: must be positive") {
		t.Errorf("a value with which no plugin starts: %v, %s", err, out)
	}
	s.output(helm("upgrade", ",extraArgs={--profiling-address=:6060}")) // the chart doesn't judge it
	s.statusSays("NotReady", "--profiling-address: Invalid value")
	s.output("helm rollback refvol 2 --namespace refvol-system")
	s.wantRunning(s.image, "--profiling-address", false)
	s.output("kubectl delete clusterrolebinding " + s.app)
	s.output("kubectl --namespace refvol-system rollout restart daemonset/refvol-plugin")
	s.statusSays("NotReady", "rights")
	s.output(helm("upgrade", ",admission.enabled=true"))
	s.output("kubectl --namespace refvol-system rollout status daemonset/refvol-plugin")
	s.wantRunning(s.image, "--identity=node", true)

	// An uninstallation that is refused, and the command that mends it.
	p := s.pods.start(showing("app", "Live"))
	s.refusesUninstall("helm uninstall refvol --namespace refvol-system", fmt.Sprintf("pod %s/app on node %s", s.pods.name, p.Spec.NodeName))
	if out, err := s.run(helm("upgrade", "")); err == nil || !strings.Contains(out, "has no deployed releases") {
		t.Errorf("an upgrade after the refusal: %v, %s", err, out)
	}
	mends := regexp.MustCompile(`helm rollback refvol \d+ --namespace \S+`).
		FindString(s.output("kubectl --namespace refvol-system logs job/refvol-uninstall-check"))
	if mends == "" {
		t.Fatal("the log of the check has no command that mends the release")
	}
	s.output(mends)
	s.output(helm("upgrade", ",admission.enabled=true"))
	p.awaitText(mountDir+"live/key", "text", podTimeout)
	p.delete()
	s.output("helm uninstall refvol --namespace refvol-system")
}

// refusesUninstall wants helm to refuse a command that uninstalls, and to print why. helm reads the log of the check once, when its last lines
// may be missing, so the command is repeated until it prints all reasons.
func (s *shell) refusesUninstall(command string, reasons ...string) {
	s.t.Helper()
	eventually(s.t, podTimeout, fmt.Sprintf("%s is refused with %q", command, reasons), func(context.Context) error {
		out, err := s.run(command)
		if err == nil {
			s.t.Fatalf("%s is not refused, and prints %s", command, out)
		}
		if !containsAll(out, reasons) {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
}

// statusSays waits until the status of all nodes is not normal and has a line with all words.
func (s *shell) statusSays(words ...string) {
	s.t.Helper()
	s.fails("kubectl refvol status", words...)
}

// fails runs a command until it fails with a line that has all words: the plugin hears of a change after the command that made it.
func (s *shell) fails(command string, words ...string) {
	s.t.Helper()
	eventually(s.t, podTimeout, fmt.Sprintf("%s says %q", command, words), func(context.Context) error {
		out, err := s.run(command)
		if err == nil || len(linesWith(out, words...)) == 0 {
			return fmt.Errorf("it ends with %w and says\n%s", err, out)
		}
		return nil
	})
}
