package manifests

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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

func restartCases(s labels) []labelCase {
	const usual = "10m/0"
	watches := func(names ...string) *added {
		return &added{watched: names, spread: "1m", spreads: names, cpu: usual}
	}
	watchesWith := func(cpu string) *added {
		return &added{watched: []string{"a"}, spreads: []string{"a"}, spread: "1m", cpu: cpu}
	}
	own := func(name string, more ...string) corev1.Volume {
		a := attributes{"configMap": "app"}
		for i := 0; i < len(more); i += 2 {
			a[more[i]] = more[i+1]
		}
		return showing(name, a)
	}
	a := func(patch string) *corev1.Pod { return merged(mounting([]corev1.Volume{own("a")}, "a:/etc/a"), patch) }
	env := func(patch string) *corev1.Pod { return merged(withEnv(secretKey("db", "password")), patch) }
	labelled := func(value string) *corev1.Pod { return withLabel(a(""), restartLabel, value) }
	spread := func(value string) *corev1.Pod {
		return env("metadata: {annotations: {refvol.dev/spread: " + value + "}}")
	}
	password := []string{"secret db/password false"}
	after := func(spread, patience string) *added {
		return &added{env: password, spread: spread, patience: patience, cpu: usual}
	}
	const guaranteed = "50m/50m"
	const limits, requests = "limits: {cpu: '1', memory: 1Gi}", "requests: {cpu: '1', memory: 1Gi}"
	resources := func(of string) *corev1.Pod { return a("spec: {containers: [{name: c, resources: {" + of + "}}]}") }
	return append([]labelCase{
		{name: "a volume", pod: a(""), adds: watches("a")},
		{name: "two volumes of three", pod: mounting([]corev1.Volume{own("a"), own("b"), own("c")}, "c:/c", "a:/a"), adds: watches("a", "c")},
		{name: "a Pinned volume", pod: mounting([]corev1.Volume{own("a", "updatePolicy", "Pinned")}, "a:/a")},
		{name: "a Pinned volume beside", pod: mounting([]corev1.Volume{own("p", "updatePolicy", "Pinned"), own("a")}, "p:/p", "a:/a"), adds: watches("a")},
		{
			name: "a volume with a spread of its own", pod: mounting([]corev1.Volume{own("a", "spread", "5m"), own("b")}, "a:/a", "b:/b"),
			adds: &added{watched: []string{"a", "b"}, spreads: []string{"b"}, spread: "1m", cpu: usual},
		},
		{name: "a volume that only an init container mounts", pod: withInit(mounting([]corev1.Volume{own("a")}), container("i", "a:/i")), adds: watches("a")},
		{name: "a volume that nobody mounts", pod: mounting([]corev1.Volume{own("a")})},
		{name: "another driver", pod: mounting([]corev1.Volume{foreign(own("a"))}, "a:/a")},
		{name: "a native volume", pod: mounting([]corev1.Volume{ofConfigMap("a")}, "a:/a")},
		{name: "nothing at all", pod: podWith("app")},

		{name: "a variable", pod: env(""), adds: after("1m", "120s")},
		{name: "variables of all kinds", pod: env(`spec: {containers: [{name: c,
			env: [{name: C, valueFrom: {configMapKeyRef: {name: app, key: mode}}}, {name: X, value: x},
				{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}],
			envFrom: [{configMapRef: {name: app}}, {prefix: P_, secretRef: {name: db, optional: true}}]}]}`), adds: &added{
			env: []string{"configmap app/mode false", "secret db/password false"}, envFrom: []string{"configmap app false", "secret db true"},
			spread: "1m", patience: "120s", cpu: usual,
		}},
		{name: "optional objects", pod: env(`spec: {containers: [{name: c,
			env: [{name: C, valueFrom: {configMapKeyRef: {name: app, key: mode, optional: true}}}, {name: K, valueFrom: {secretKeyRef: {name: db, key: user, optional: true}}}],
			envFrom: [{configMapRef: {name: app, optional: true}}, {prefix: P_, secretRef: {name: db}}]}]}`), adds: &added{
			env:     []string{"configmap app/mode true", "secret db/user true", "secret db/password false"},
			envFrom: []string{"configmap app true", "secret db false"}, spread: "1m", patience: "120s", cpu: usual,
		}},
		{name: "the same in each container", pod: changed(env("spec: {containers: [{name: c, envFrom: [{configMapRef: {name: app}}]}]}"), func(pod *corev1.Pod) {
			second, init := *pod.Spec.Containers[0].DeepCopy(), *pod.Spec.Containers[0].DeepCopy()
			second.Name, init.Name = "d", "i"
			pod.Spec.Containers, pod.Spec.InitContainers = append(pod.Spec.Containers, second), []corev1.Container{init}
		}), adds: &added{env: password, envFrom: []string{"configmap app false"}, spread: "1m", patience: "120s", cpu: usual}},
		{
			name: "a variable and a volume", pod: a("spec: {containers: [{name: c, env: [{name: S, valueFrom: {secretKeyRef: {name: db, key: password}}}]}]}"),
			adds: &added{env: password, watched: []string{"a"}, spreads: []string{"a"}, spread: "1m", patience: "120s", cpu: usual},
		},

		{name: "another spread", pod: spread("5m"), adds: after("5m", "360s")},
		{name: "a spread of two units", pod: spread("1m30s"), adds: after("1m30s", "150s")},
		{name: "no spread", pod: spread("0s"), adds: after("", "60s")},
		{name: "no spread of a volume", pod: a("metadata: {annotations: {refvol.dev/spread: 0s}}"), adds: &added{watched: []string{"a"}, cpu: usual}},
		{name: "backups leave out a volume already", pod: env("metadata: {annotations: {" + excludes + ": 'cache,data'}}"), adds: after("1m", "120s")},
		{name: "a spread that the plugin refuses", pod: spread("soon"), adds: after("soon", "60s")},

		{name: "Guaranteed by limits", pod: resources(limits), adds: watchesWith(guaranteed)},
		{name: "Guaranteed by both", pod: resources(limits + ", " + requests), adds: watchesWith(guaranteed)},
		{name: "Burstable by the requests", pod: resources(limits + ", requests: {cpu: 500m}"), adds: watchesWith("10m/100m")},
		{name: "Burstable by the request of memory", pod: resources(limits + ", requests: {cpu: '1', memory: 512Mi}"), adds: watchesWith("10m/100m")},
		{name: "Burstable by a second container", pod: merged(resources(limits), "spec: {containers: [{name: d, image: none}]}"), adds: watches("a")},
		{name: "resources of the pod", pod: a("spec: {resources: {" + limits + ", " + requests + "}}"), adds: watchesWith("")},

		{name: "the pod's user", pod: a("spec: {securityContext: {runAsUser: 1000}}"), adds: watches("a")},
		{
			name: "root as the pod's user", pod: a("spec: {securityContext: {runAsUser: 0}}"),
			adds: &added{watched: []string{"a"}, spreads: []string{"a"}, spread: "1m", cpu: usual, user: new(int64(65532))},
		},

		{name: "an init container before", pod: withInit(a(""), container("i")), adds: watches("a")},
		{name: "the label false", pod: labelled("false")},
		{name: "the annotation false", pod: a("metadata: {annotations: {refvol.dev/restart: 'false'}}")},
		{name: "the label true, in another namespace", namespace: s.plain, pod: labelled("true"), adds: watches("a")},
		{name: "another namespace", namespace: s.plain, pod: a("")},
		{name: "kube-system", namespace: metav1.NamespaceSystem, pod: labelled("true")},
		{name: "the plugin's namespace", namespace: pluginNamespace, pod: labelled("true")},
		{name: "restartPolicy Never", pod: a("spec: {restartPolicy: Never}")},
		{name: "restartPolicy OnFailure", pod: a("spec: {restartPolicy: OnFailure}")},
		{name: "Windows by its field", pod: a(windowsByField)},
		{name: "Windows by the node selector", pod: a(windowsBySelector)},
		{name: "a mirror pod", pod: a(mirror)},
	}, append(byHandCases(a), largeCases()...)...)
}

// byHandCases are pods with a sidecar, or a name of the policy's, that somebody has written.
func byHandCases(a func(string) *corev1.Pod) (all []labelCase) {
	for name, c := range map[string]string{
		"of the name": "name: refvol-notify, image: localhost/none", "of the image": "name: notify, image: 'registry.example.com:5000/x/refvol-notify:v9'",
		"of a digest": "name: notify, image: 'refvol-notify@sha256:2f1f05ecbd8e4b1dcfdb8a2ff2dbd1e04f3e1ac9fd2fd6f6e9e86e05ee0f0c3c'",
	} {
		for _, containers := range []string{"initContainers", "containers"} {
			all = append(all, labelCase{name: "one of the " + containers + " " + name, pod: a("spec: {" + containers + ": [{" + c + "}]}")})
		}
	}
	for _, name := range []string{"refvol-notify-state", "refvol-notify-env"} {
		all = append(all, labelCase{name: "a volume " + name, pod: a("spec: {volumes: [{name: " + name + ", emptyDir: {}}]}")})
	}
	return append(all, labelCase{
		name: "another image", pod: a("spec: {initContainers: [{name: i, image: 'localhost/refvol-notify-more:v1'}]}"),
		adds: &added{watched: []string{"a"}, spreads: []string{"a"}, spread: "1m", cpu: "10m/0"},
	})
}

// largeCases are pods at limits: of the plugin, and of what CEL may cost. Beyond these the pod stays as it is, as it would
// never start, or the policy can't judge it.
func largeCases() []labelCase {
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
	cases := []labelCase{
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
		labelCase{name: "257 objects", pod: keys(mostObjects+1, 1)},
		labelCase{name: "127 volumes", pod: most, adds: mounted(most)},
		labelCase{name: "128 volumes", pod: volumes(mostPodVolumes)},
		labelCase{name: "8192 variables", pod: keys(mostPodItems/2, 100)})
}

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
