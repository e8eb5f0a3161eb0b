package volume

import (
	"hash/fnv"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// ParseShare reads a value of RolloutAnnotation, such as 10%. An empty one is 100, and one that isn't understood 0 and false.
func ParseShare(text string) (percent int, ok bool) {
	if text == "" {
		return 100, true
	}
	digits, ok := strings.CutSuffix(text, "%")
	percent, err := strconv.Atoi(digits)
	if !ok || err != nil || percent < 0 || percent > 100 || strconv.Itoa(percent) != digits {
		return 0, false
	}
	return percent, true
}

// RolloutPlace returns the share from which on a pod takes changes, 1 to 100. It is the same for all objects.
func RolloutPlace(pod types.UID) int {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(pod))
	return int(hash.Sum64()%100) + 1
}
