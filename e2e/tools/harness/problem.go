package harness

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// The plugin logs each change of what ails a volume, as text, where an error of several lines is in angle brackets,
// or as JSON.
var (
	problemText = regexp.MustCompile(`"(?:Volume does not show what it should|Volume is current again)"(?: err=("(?:[^"\\]|\\.)*"|<(?s:.*?)\n >))? [^\n]*?volumeID="([^"]+)"`)
	problemJSON = regexp.MustCompile(`(?m)^\{.*"msg":"(?:Volume does not show what it should|Volume is current again)".*\}$`)
)

// Problem returns what this run of the plugin has logged last to ail a volume, "" for nothing. If volumes of one pod fail
// together, the log names only the first of them.
func (p *Plugin) Problem(v *Volume) (string, error) {
	log, err := p.runLog()
	if err != nil {
		return "", err
	}
	return problemIn(string(log), v.ID())
}

func problemIn(log, volumeID string) (problem string, err error) {
	for _, line := range problemText.FindAllStringSubmatch(log, -1) {
		if line[2] != volumeID {
			continue
		}
		problem = line[1]
		if strings.HasPrefix(problem, `"`) {
			if problem, err = strconv.Unquote(problem); err != nil {
				return "", fmt.Errorf("log line %s: %w", line[0], err)
			}
		}
	}
	for _, line := range problemJSON.FindAllString(log, -1) {
		var fields struct{ Err, VolumeID string }
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			return "", fmt.Errorf("log line %s: %w", line, err)
		}
		if fields.VolumeID == volumeID {
			problem = fields.Err
		}
	}
	return problem, nil
}
