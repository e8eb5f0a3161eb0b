package manifests

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// added is what the policy adds to a pod.
type added struct {
	// env and envFrom are the sidecar's, as texts; watched are the volumes that it mounts.
	env, envFrom, watched []string
	// spread is that of the volume of the environment and, as spreads says, of volumes; patience is the argument.
	spread, patience string
	spreads          []string
	// cpu has the request and the limit. Without it the sidecar has no resources.
	cpu string
	// user is the sidecar's, if the policy chooses it.
	user *int64
}

// restartCase is a pod, and what becomes of it in a namespace with the label.
type restartCase struct {
	name      string
	pod       *corev1.Pod
	namespace string
	// adds is nil for a pod that stays as it is.
	adds *added
}

// restartCases are all cases.
func restartCases(s labels) []restartCase {
	const usual = "10m/0"
	watches := func(names ...string) *added {
		return &added{watched: names, spread: "1m", spreads: names, cpu: "10m/0"}
	}
	own := func(name string, more ...string) corev1.Volume {
		a := attributes{"configMap": "app"}
		for i := 0; i < len(more); i += 2 {
			a[more[i]] = more[i+1]
		}
		return showing(name, a)
	}
	a := func(change func(*corev1.Pod)) *corev1.Pod {
		return changed(mounting([]corev1.Volume{own("a")}, "a:/etc/a"), change)
	}
	labelled := func(value string) *corev1.Pod {
		return a(func(pod *corev1.Pod) { pod.Labels = map[string]string{restartLabel: value} })
	}
	spread := func(value string) *corev1.Pod {
		return changed(withEnv(secretKey("db", "password")), func(pod *corev1.Pod) {
			pod.Annotations = map[string]string{"refvol.dev/spread": value}
		})
	}
	password := []string{"secret db/password false"}
	const guaranteed = "50m/50m"
	limits := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi")}
	foreign := changedVolume(own("a"), func(v *corev1.CSIVolumeSource) { v.Driver = "csi.example.com" })
	return append([]restartCase{
		{name: "a volume", pod: a(func(*corev1.Pod) {}), adds: watches("a")},
		{name: "two volumes of three", pod: mounting([]corev1.Volume{own("a"), own("b"), own("c")}, "c:/c", "a:/a"), adds: watches("a", "c")},
		{name: "a Pinned volume", pod: mounting([]corev1.Volume{own("a", "updatePolicy", "Pinned")}, "a:/a")},
		{name: "a Pinned volume beside", pod: mounting([]corev1.Volume{own("p", "updatePolicy", "Pinned"), own("a")}, "p:/p", "a:/a"), adds: watches("a")},
		{
			name: "a volume with a spread of its own", pod: mounting([]corev1.Volume{own("a", "spread", "5m"), own("b")}, "a:/a", "b:/b"),
			adds: &added{watched: []string{"a", "b"}, spreads: []string{"b"}, spread: "1m", cpu: usual},
		},
		{name: "a volume that only an init container mounts", pod: changed(mounting([]corev1.Volume{own("a")}), func(pod *corev1.Pod) {
			pod.Spec.InitContainers = []corev1.Container{container("i", "a:/i")}
		}), adds: watches("a")},
		{name: "a volume that nobody mounts", pod: mounting([]corev1.Volume{own("a")})},
		{name: "another driver", pod: mounting([]corev1.Volume{foreign}, "a:/a")},
		{name: "a native volume", pod: mounting([]corev1.Volume{ofConfigMap("a")}, "a:/a")},
		{name: "nothing at all", pod: podWith("app")},

		{name: "a variable", pod: withEnv(secretKey("db", "password")), adds: &added{env: password, spread: "1m", patience: "120s", cpu: usual}},
		{name: "variables of all kinds", pod: changed(withEnv(secretKey("db", "password"), configKey("app", "mode"), corev1.EnvVar{Name: "X", Value: "x"},
			corev1.EnvVar{Name: "NODE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}}),
			func(pod *corev1.Pod) {
				pod.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{fromConfigMap("app"), fromSecret("db")}
				pod.Spec.Containers[0].EnvFrom[1].Prefix, pod.Spec.Containers[0].EnvFrom[1].SecretRef.Optional = "P_", new(true)
			}), adds: &added{
			env: []string{"secret db/password false", "configmap app/mode false"}, envFrom: []string{"configmap app false", "secret db true"},
			spread: "1m", patience: "120s", cpu: usual,
		}},
		{name: "the same in each container", pod: changed(withEnv(secretKey("db", "password")), func(pod *corev1.Pod) {
			pod.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{fromConfigMap("app")}
			second, init := *pod.Spec.Containers[0].DeepCopy(), *pod.Spec.Containers[0].DeepCopy()
			second.Name, init.Name = "d", "i"
			pod.Spec.Containers, pod.Spec.InitContainers = append(pod.Spec.Containers, second), []corev1.Container{init}
		}), adds: &added{env: password, envFrom: []string{"configmap app false"}, spread: "1m", patience: "120s", cpu: usual}},
		{name: "a variable and a volume", pod: changed(a(func(*corev1.Pod) {}), func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Env = []corev1.EnvVar{secretKey("db", "password")}
		}), adds: &added{env: password, watched: []string{"a"}, spreads: []string{"a"}, spread: "1m", patience: "120s", cpu: usual}},

		{name: "another spread", pod: spread("5m"), adds: &added{env: password, spread: "5m", patience: "360s", cpu: usual}},
		{name: "a spread of two units", pod: spread("1m30s"), adds: &added{env: password, spread: "1m30s", patience: "150s", cpu: usual}},
		{name: "no spread", pod: spread("0s"), adds: &added{env: password, patience: "60s", cpu: usual}},
		{
			name: "no spread of a volume", pod: a(func(pod *corev1.Pod) { pod.Annotations = map[string]string{"refvol.dev/spread": "0s"} }),
			adds: &added{watched: []string{"a"}, cpu: usual},
		},
		{
			name: "backups leave out a volume already",
			pod: changed(withEnv(secretKey("db", "password")), func(pod *corev1.Pod) {
				pod.Annotations = map[string]string{excludes: "cache,data"}
			}),
			adds: &added{env: password, spread: "1m", patience: "120s", cpu: usual},
		},
		{name: "a spread that the plugin refuses", pod: spread("soon"), adds: &added{env: password, spread: "soon", patience: "60s", cpu: usual}},

		{
			name: "Guaranteed by limits", pod: a(func(pod *corev1.Pod) { pod.Spec.Containers[0].Resources.Limits = limits }),
			adds: &added{watched: []string{"a"}, spreads: []string{"a"}, spread: "1m", cpu: guaranteed},
		},
		{name: "Guaranteed by both", pod: a(func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Limits: limits, Requests: limits}
		}), adds: &added{watched: []string{"a"}, spreads: []string{"a"}, spread: "1m", cpu: guaranteed}},
		{name: "Burstable by the requests", pod: a(func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{
				Limits:   limits,
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")},
			}
		}), adds: &added{watched: []string{"a"}, spreads: []string{"a"}, spread: "1m", cpu: "10m/100m"}},
		{name: "Burstable by a second container", pod: a(func(pod *corev1.Pod) {
			pod.Spec.Containers[0].Resources.Limits = limits
			pod.Spec.Containers = append(pod.Spec.Containers, container("d"))
		}), adds: watches("a")},
		{name: "resources of the pod", pod: a(func(pod *corev1.Pod) {
			pod.Spec.Resources = &corev1.ResourceRequirements{Limits: limits, Requests: limits}
		}), adds: &added{watched: []string{"a"}, spreads: []string{"a"}, spread: "1m"}},

		{name: "the pod's user", pod: a(func(pod *corev1.Pod) {
			pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: new(int64(1000))}
		}), adds: watches("a")},
		{
			name: "root as the pod's user", pod: a(func(pod *corev1.Pod) { pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: new(int64(0))} }),
			adds: &added{watched: []string{"a"}, spreads: []string{"a"}, spread: "1m", cpu: usual, user: new(int64(65532))},
		},

		{name: "an init container before", pod: a(func(pod *corev1.Pod) { pod.Spec.InitContainers = []corev1.Container{container("i")} }), adds: watches("a")},
		{name: "the label false", pod: labelled("false")},
		{name: "the annotation false", pod: a(func(pod *corev1.Pod) { pod.Annotations = map[string]string{restartLabel: "false"} })},
		{name: "the label true, in another namespace", namespace: s.plain, pod: labelled("true"), adds: watches("a")},
		{name: "another namespace", namespace: s.plain, pod: a(func(*corev1.Pod) {})},
		{name: "kube-system", namespace: metav1.NamespaceSystem, pod: labelled("true")},
		{name: "the plugin's namespace", namespace: pluginNamespace, pod: labelled("true")},
		{name: "restartPolicy Never", pod: a(func(pod *corev1.Pod) { pod.Spec.RestartPolicy = corev1.RestartPolicyNever })},
		{name: "restartPolicy OnFailure", pod: a(func(pod *corev1.Pod) { pod.Spec.RestartPolicy = corev1.RestartPolicyOnFailure })},
		{name: "Windows by its field", pod: a(func(pod *corev1.Pod) { pod.Spec.OS = &corev1.PodOS{Name: corev1.Windows} })},
		{name: "Windows by the node selector", pod: a(func(pod *corev1.Pod) { pod.Spec.NodeSelector = map[string]string{corev1.LabelOSStable: "windows"} })},
		{name: "a mirror pod", pod: a(func(pod *corev1.Pod) {
			pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
			pod.Spec.NodeName, pod.Spec.AutomountServiceAccountToken = "node", new(false)
		})},
	}, append(byHandCases(a), largeCases()...)...)
}

// byHandCases are pods with a sidecar, or a name of the policy's, that somebody has written.
func byHandCases(a func(func(*corev1.Pod)) *corev1.Pod) []restartCase {
	named := func(name, image string) corev1.Container {
		c := container(name, "a:/a")
		c.Image = image
		return c
	}
	var all []restartCase
	for name, c := range map[string]corev1.Container{
		"of the name": named("refvol-notify", "localhost/none"), "of the image": named("notify", "registry.example.com:5000/x/refvol-notify:v9"),
		"of a digest": named("notify", "refvol-notify@sha256:2f1f05ecbd8e4b1dcfdb8a2ff2dbd1e04f3e1ac9fd2fd6f6e9e86e05ee0f0c3c"),
	} {
		all = append(all,
			restartCase{name: "a sidecar " + name, pod: a(func(pod *corev1.Pod) { pod.Spec.InitContainers = []corev1.Container{c} })},
			restartCase{name: "a container " + name, pod: a(func(pod *corev1.Pod) { pod.Spec.Containers = append(pod.Spec.Containers, c) })})
	}
	for _, name := range []string{"refvol-notify-state", "refvol-notify-env"} {
		all = append(all, restartCase{name: "a volume " + name, pod: a(func(pod *corev1.Pod) { pod.Spec.Volumes = append(pod.Spec.Volumes, empty(name)) })})
	}
	return append(all, restartCase{name: "another image", pod: a(func(pod *corev1.Pod) {
		pod.Spec.InitContainers = []corev1.Container{named("i", "localhost/refvol-notify-more:v1")}
	}), adds: &added{watched: []string{"a"}, spreads: []string{"a"}, spread: "1m", cpu: "10m/0"}})
}

// largeCases are pods at limits: of the plugin, and of what CEL may cost. Beyond these the pod stays as it is, as it would
// never start, or the policy can't judge it.
func largeCases() []restartCase {
	keys := func(n, each int) *corev1.Pod {
		var env []corev1.EnvVar
		for i := range n {
			v := configKey(fmt.Sprintf("o%d", i/each), fmt.Sprintf("k%d", i))
			v.Name = fmt.Sprintf("V%d", i)
			env = append(env, v)
		}
		return withEnv(env...)
	}
	volumes := func(n int) *corev1.Pod {
		pod := podWith("app")
		var all []string
		for i := range n {
			v := showing(fmt.Sprintf("v%d", i), attributes{"configMap": "app"})
			pod.Spec.Volumes = append(pod.Spec.Volumes, v)
			all = append(all, fmt.Sprintf("%s:/v/%s", v.Name, v.Name))
		}
		pod.Spec.Containers[0] = container("c", all...)
		return pod
	}
	environment := func(pod *corev1.Pod) *added {
		return &added{env: textsOf(pod.Spec.Containers[0].Env), spread: "1m", patience: "120s", cpu: "10m/0"}
	}
	mounted := func(pod *corev1.Pod) *added {
		var names []string
		for i := range pod.Spec.Volumes {
			names = append(names, pod.Spec.Volumes[i].Name)
		}
		return &added{watched: names, spreads: slices.Clone(names), spread: "1m", cpu: "10m/0"}
	}
	cases := []restartCase{
		{name: "256 objects", pod: keys(mostObjects, 1)},
		{name: "200 variables of 2 objects", pod: keys(200, 100)},
		{name: "201 variables of 3 objects", pod: keys(201, 100)},
		{name: "8191 variables", pod: keys(mostPodItems/2-1, 100)}, // two sources list them
	}
	for i := range cases {
		cases[i].adds = environment(cases[i].pod)
	}
	most := volumes(mostPodVolumes - 1)
	return append(cases,
		restartCase{name: "257 objects", pod: keys(mostObjects+1, 1)},
		restartCase{name: "127 volumes", pod: most, adds: mounted(most)},
		restartCase{name: "128 volumes", pod: volumes(mostPodVolumes)},
		restartCase{name: "8192 variables", pod: keys(mostPodItems/2, 100)})
}

// withEnv is a pod whose container has variables.
func withEnv(env ...corev1.EnvVar) *corev1.Pod {
	return changed(podWith("app"), func(pod *corev1.Pod) { pod.Spec.Containers[0].Env = env })
}

func secretKey(name, key string) corev1.EnvVar {
	return corev1.EnvVar{Name: "S", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
		LocalObjectReference: corev1.LocalObjectReference{Name: name}, Key: key,
	}}}
}

func configKey(name, key string) corev1.EnvVar {
	return corev1.EnvVar{Name: "C", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
		LocalObjectReference: corev1.LocalObjectReference{Name: name}, Key: key,
	}}}
}

func fromConfigMap(name string) corev1.EnvFromSource {
	return corev1.EnvFromSource{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}
}

func fromSecret(name string) corev1.EnvFromSource {
	return corev1.EnvFromSource{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}}
}

// textsOf are the references of variables.
func textsOf(env []corev1.EnvVar) (all []string) {
	for i := range env {
		switch from := env[i].ValueFrom; {
		case from.ConfigMapKeyRef != nil:
			all = append(all, fmt.Sprintf("configmap %s/%s %t", from.ConfigMapKeyRef.Name, from.ConfigMapKeyRef.Key, isTrue(from.ConfigMapKeyRef.Optional)))
		case from.SecretKeyRef != nil:
			all = append(all, fmt.Sprintf("secret %s/%s %t", from.SecretKeyRef.Name, from.SecretKeyRef.Key, isTrue(from.SecretKeyRef.Optional)))
		}
	}
	return all
}

// textsOfObjects are the references of envFrom.
func textsOfObjects(from []corev1.EnvFromSource) (all []string) {
	for i := range from {
		switch {
		case from[i].ConfigMapRef != nil:
			all = append(all, fmt.Sprintf("configmap %s %t", from[i].ConfigMapRef.Name, isTrue(from[i].ConfigMapRef.Optional)))
		case from[i].SecretRef != nil:
			all = append(all, fmt.Sprintf("secret %s %t", from[i].SecretRef.Name, isTrue(from[i].SecretRef.Optional)))
		}
	}
	return all
}

func isTrue(b *bool) bool { return b != nil && *b }
