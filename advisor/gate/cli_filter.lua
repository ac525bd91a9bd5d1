-- Slurm's cli_filter/lua: refuses an sbatch that cannot hold its job, or breaks its limits.
--
-- Put it beside slurm.conf as cli_filter.lua and set CliFilterPlugins=lua there. It runs in
-- sbatch, as the user, before anything is submitted; the controller never waits for it. The
-- environment may name the command (ADVISOR_COMMAND, "advisor" by default); what a machine of a
-- partition is, and whether a job that cannot be judged is refused, stand in a file of settings
-- ([gate] partition, strict in the project's or the user's advisor.toml) or in ADVISOR_GATE_....

local function quoted(text)
  return "'" .. string.gsub(text, "'", "'\\''") .. "'"
end

function slurm_cli_setup_defaults(options, early_pass)
  return slurm.SUCCESS
end

function slurm_cli_pre_submit(options, pack_offset)
  if options["type"] ~= "sbatch" then
    return slurm.SUCCESS
  end
  local path = os.tmpname()
  local file = io.open(path, "w")
  if file == nil then
    slurm.log_info("advisor gate: cannot write %s; the job was not judged", path)
    return slurm.SUCCESS
  end
  file:write(slurm.json_cli_options(options))
  file:close()
  local command = os.getenv("ADVISOR_COMMAND") or "advisor"
  -- Lua's pipes return no exit code: the shell prints it behind the verdict.
  local pipe = io.popen(command .. " gate --slurm-options " .. quoted(path)
    .. " 2>/dev/null; echo \"exit $?\"", "r")
  local said, code = {}, nil
  for line in pipe:lines() do
    code = tonumber(string.match(line, "^exit (%d+)$")) or code
    table.insert(said, line)
  end
  pipe:close()
  os.remove(path)
  if code == 3 then
    table.remove(said)
    for _, line in ipairs(said) do
      slurm.log_info("%s", line)
    end
    return slurm.ERROR
  end
  if code ~= 0 then
    slurm.log_info("advisor gate did not judge the job (exit code %s)", tostring(code))
    if os.getenv("ADVISOR_BUDGET") then
      return slurm.ERROR
    end
  end
  return slurm.SUCCESS
end

function slurm_cli_post_submit(offset, job_id, step_id)
  return slurm.SUCCESS
end
