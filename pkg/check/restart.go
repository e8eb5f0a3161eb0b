package check

import (
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/refvol/refvol/pkg/pod"
)

// notifyProgram is the sidecar whose exit status restarts a pod's containers.
const notifyProgram = "refvol-notify"

// restartRules adds a problem for each sidecar with --exit-code whose exit does not restart all containers of the pod. Otherwise only the
// sidecar restarts, and the application keeps its old state.
func (c *Checker) restartRules(at Location, template podTemplate) {
	for _, container := range pod.Containers(template.spec, template.at) {
		code, ok := exitCodeOf(container.Container)
		if !isNotify(container.Container) || !ok || slices.ContainsFunc(container.RestartPolicyRules, func(r corev1.ContainerRestartRule) bool { return restartsAll(&r, code) }) {
			continue
		}
		c.problem(at, container.At.Child("restartPolicyRules").String(),
			"Required value: action RestartAllContainers for exit code "+strconv.Itoa(int(code))+": otherwise only "+container.Name+" restarts after a change")
	}
}

// isNotify reports whether a container runs the program, by its image or its command.
func isNotify(c *corev1.Container) bool {
	if len(c.Command) > 0 {
		return path.Base(c.Command[0]) == notifyProgram
	}
	name, _, _ := strings.Cut(path.Base(c.Image), "@")
	name, _, _ = strings.Cut(name, ":")
	return name == notifyProgram
}

// exitCodeOf returns the value of --exit-code, and whether it is set.
func exitCodeOf(c *corev1.Container) (int32, bool) {
	args := slices.Concat(c.Command, c.Args)
	for i, arg := range args {
		name, value, isOne := strings.Cut(arg, "=")
		if strings.TrimLeft(name, "-") != "exit-code" || !strings.HasPrefix(name, "-") {
			continue
		}
		if !isOne && i+1 < len(args) {
			value = args[i+1]
		}
		code, err := strconv.ParseInt(value, 10, 32)
		return int32(code), err == nil
	}
	return 0, false
}

func restartsAll(r *corev1.ContainerRestartRule, code int32) bool {
	codes := ptr.Deref(r.ExitCodes, corev1.ContainerRestartRuleOnExitCodes{})
	named := slices.Contains(codes.Values, code)
	return r.Action == corev1.ContainerRestartRuleActionRestartAllContainers &&
		(codes.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn && named ||
			codes.Operator == corev1.ContainerRestartRuleOnExitCodesOpNotIn && !named)
}
