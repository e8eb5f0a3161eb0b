package suite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// racingPods is how many pods have containers that race.
const racingPods = 3

// race starts pods whose containers mount parts of volumes while these change under the kubelet and the
// runtime, and where these would have to make something in a volume. It returns how many containers there were.
func (s *scene) race() int {
	s.t.Helper()
	var pods []*pod
	for i := range racingPods {
		pods = append(pods, s.create(onNode(s.racer(i), s.node)))
	}
	outcomes := map[string]int{}
	for _, p := range pods {
		for _, status := range p.awaitContainers() {
			outcomes[s.checkRacing(p, status)]++
		}
	}
	for _, p := range pods {
		if err := s.client.CoreV1().Pods(s.name).Delete(s.t.Context(), p.Name, metav1.DeleteOptions{}); err != nil {
			s.t.Fatal(err)
		}
	}
	total := 0
	for outcome, n := range outcomes {
		s.t.Logf("%d containers in a race: %s", n, outcome)
		total += n
	}
	for _, p := range pods {
		p.awaitGone(s.t)
	}
	if outcomes[started] == 0 {
		s.t.Error("no container started in the race")
	}
	return total
}

// racer describes a pod whose containers start while its volumes change.
func (s *scene) racer(number int) *corev1.Pod {
	volumes := bothStrategies()
	spec := newPod(fmt.Sprintf("racer-%d", number), append(volumes, emptyDir("scratch", corev1.StorageMediumDefault))...)
	spec.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: new(int64(0))}
	spec.Spec.RestartPolicy = corev1.RestartPolicyNever
	spec.Spec.Containers = nil
	for i, mounts := range racingMounts(volumes[number%len(volumes)].Name) {
		c := newContainer(fmt.Sprintf("%s-%d", strings.ReplaceAll(mounts.name, " ", "-"), i), nil)
		c.Args = []string{"tree", "/seen"}
		c.VolumeMounts = mounts.mounts
		spec.Spec.Containers = append(spec.Spec.Containers, c)
	}
	return spec
}

// never is in the name of a container that must not start.
const never = "never"

// racing is what a container mounts that tells what it got of that.
type racing struct {
	name   string
	mounts []corev1.VolumeMount
}

// racingMounts returns those of each container of a pod.
func racingMounts(volume string) []racing {
	part := func(volume, path, subPath string) corev1.VolumeMount {
		return corev1.VolumeMount{Name: volume, MountPath: "/seen/" + path, SubPath: subPath}
	}
	parts := func(volume string) []corev1.VolumeMount {
		return []corev1.VolumeMount{part(volume, "key", "key"), part(volume, "conf", "..data/conf"), part(volume, "app.yaml", "conf/app.yaml")}
	}
	return []racing{
		{"parts", parts("atomic")},
		{"parts in place", parts("in-place")},
		{never + " made in volume", []corev1.VolumeMount{part(volume, "made", "hostile/made")}},
		{never + " mounted in volume", []corev1.VolumeMount{part(volume, "volume", ""), part("scratch", "volume/hostile", "")}},
	}
}

// awaitContainers waits until each container has ended or was refused, and returns their
// states.
func (p *pod) awaitContainers() []corev1.ContainerStatus {
	p.t.Helper()
	var states []corev1.ContainerStatus
	eventually(p.t, podTimeout, "end of the containers of "+p.Name, func(ctx context.Context) error {
		now, err := p.client.CoreV1().Pods(p.Namespace).Get(ctx, p.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		states = now.Status.ContainerStatuses
		if len(states) == 0 {
			return errors.New("there are none yet")
		}
		for _, status := range states {
			w := status.State.Waiting
			if status.State.Terminated == nil && (w == nil || !strings.HasSuffix(w.Reason, "Error")) {
				return fmt.Errorf("%s: %+v", status.Name, status.State)
			}
		}
		return nil
	})
	return states
}

// started is what became of a container that ran.
const started = "started"

// checkRacing checks that a container has got what the API server had at some time. It returns what became of the container.
func (s *scene) checkRacing(p *pod, status corev1.ContainerStatus) string {
	s.t.Helper()
	if w := status.State.Waiting; w != nil {
		message, _, _ := strings.Cut(w.Message, " of container ")
		return w.Reason + ": " + message
	}
	if end := status.State.Terminated; end.Reason == "StartError" {
		// The runtime tells everything that it did; the last is what was wrong.
		return end.Reason + ": " + end.Message[strings.LastIndex(end.Message, ": ")+2:]
	}
	if strings.HasPrefix(status.Name, never) {
		log, err := s.client.CoreV1().Pods(s.name).GetLogs(p.Name, &corev1.PodLogOptions{Container: status.Name}).DoRaw(s.t.Context())
		s.t.Errorf("%s of %s started, and got %.300s, %v", status.Name, p.Name, log, err)
		return started
	}
	var entries []entry
	eventually(s.t, podTimeout/2, "the log of "+status.Name+" of "+p.Name, func(ctx context.Context) error { // it may lag behind the container's end
		log, err := s.client.CoreV1().Pods(s.name).GetLogs(p.Name, &corev1.PodLogOptions{Container: status.Name}).DoRaw(ctx)
		if err != nil {
			return err
		}
		entries = nil
		if err := json.Unmarshal(log, &entries); err != nil && !isAbsent(errors.New(string(log))) {
			return fmt.Errorf("%w: %.300s", err, log)
		}
		return nil
	})
	for _, e := range entries {
		if !mayBeSeen(e) {
			s.t.Errorf("%s of %s got %s", status.Name, p.Name, describe(e))
		}
	}
	return started
}

// mayBeSeen tells whether an entry is one that is meant for a racing container.
func mayBeSeen(e entry) bool {
	if e.Type == "dir" {
		return e.Path == "." || e.Path == "conf"
	}
	kind, _, _ := strings.Cut(string(e.Content), " ")
	return e.Type == "file" && (e.Path == "key" && kind == "key" || (e.Path == "app.yaml" || e.Path == "conf/app.yaml") && kind == "app")
}
